"""Removes the record."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from fusioncache.record.reader import LOCK_SECONDS, RecordError


def forget(path: Path) -> bool:
    """Removes a record while nobody writes it. A process that goes on writes its own run again.

    Returns:
        Whether there was one.

    Raises:
        RecordError: if others write it all the time, or it cannot be removed.
    """
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)) as database:
            _keep_others_out(database)
            path.unlink(missing_ok=True)
    except (sqlite3.Error, OSError) as error:
        raise RecordError(f"{path} cannot be removed ({error}): try again, or remove it yourself") from error
    return True


def _keep_others_out(database: sqlite3.Connection) -> None:
    try:
        database.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        return  # it is no database, so nobody writes it
