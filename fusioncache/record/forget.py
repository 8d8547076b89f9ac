"""Removes the record."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from fusioncache.process import sqlite_file
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
        sqlite_file.remove(path, LOCK_SECONDS)
    except (sqlite3.Error, OSError) as error:
        raise RecordError(f"{path} cannot be removed ({error}): try again, or remove it yourself") from error
    return True
