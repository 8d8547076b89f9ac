"""Files of sqlite whose schema has a version: opened, made, upgraded, written and removed in one way."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fusioncache.process.places import free
from fusioncache.process.private_files import protect

Upgrade = Callable[[sqlite3.Connection], None]


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of a file.

    Attributes:
        version: is written into the file.
        tables: the statements that make them.
        pragma: a statement that each connection begins with before it writes.
        upgrades: make a file of an earlier version one of this version.
        make_error: makes what is raised for a file at this path that has another version; 0 if it is no file of ours.
        is_vacuumed: whether pages that are freed leave a file that is made now at the end of each transaction.
    """

    version: int
    tables: tuple[str, ...]
    pragma: str
    make_error: Callable[[Path, int], Exception]
    upgrades: Mapping[int, Upgrade] = field(default_factory=dict)
    is_vacuumed: bool = False

    @contextmanager
    def write(self, path: Path, lock_seconds: float) -> Iterator[sqlite3.Connection]:
        """Opens a file for one transaction, which ends with the context. A new file gets the tables.

        Args:
            path: of the file.
            lock_seconds: how long to wait for others that write it.

        Raises:
            sqlite3.Error: if the file cannot be written.
            Exception: what ``make_error`` makes, if the file has another version, and there is no upgrade from that.
        """
        free(path, follows=True)
        free(path.with_name(f"{path.name}-journal"))
        with closing(sqlite3.connect(path, timeout=lock_seconds, isolation_level=None)) as database, database:
            database.execute("PRAGMA secure_delete = ON")
            database.execute(self.pragma)
            _read_version(database)
            protect(path)  # while a new one is empty; what sqlite makes beside it has its permissions
            # Later it would do nothing to the file but write to it, also to one that is left alone.
            if self.is_vacuumed and database.execute("PRAGMA page_count").fetchone()[0] == 0:
                database.execute("PRAGMA auto_vacuum = FULL")
            # A transaction that begins by reading fails at once when another process writes; this one waits its turn.
            database.execute("BEGIN IMMEDIATE")
            self._prepare(path, database)
            yield database

    @contextmanager
    def read(self, path: Path, lock_seconds: float) -> Iterator[sqlite3.Connection]:
        """Opens a file that is there, to read rows by the names of their columns.

        Raises:
            sqlite3.Error: if the file cannot be read.
            Exception: what ``make_error`` makes, if the file has another version.
        """
        # Not mode=ro: what a process that died while writing left half done is rolled back by the next to open the
        # file, and that takes a connection which may write. sqlite falls back to reading if the file is protected.
        protect(path)
        address = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, uri=True, timeout=lock_seconds)) as database:
            database.row_factory = sqlite3.Row
            version = _read_version(database)
            if version != self.version:
                raise self.make_error(path, version)
            yield database

    def _prepare(self, path: Path, database: sqlite3.Connection) -> None:
        version = _read_version(database)
        if version == self.version:
            return
        # Any other program's sqlite file may have version 0, but only a new file has nothing in it.
        if version == 0 and not database.execute("SELECT 1 FROM sqlite_master").fetchone():
            for table in self.tables:
                database.execute(table)
        elif version in self.upgrades:
            self.upgrades[version](database)
        else:
            raise self.make_error(path, version)
        database.execute(f"PRAGMA user_version = {self.version}")


def _read_version(database: sqlite3.Connection) -> int:
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    return version


def remove(path: Path, lock_seconds: float) -> None:
    """Removes a file while nobody writes it, or what is in its place.

    Raises:
        sqlite3.Error: if others write it all the time.
        OSError: if it cannot be removed.
    """
    if free(path, follows=True):
        return
    with closing(sqlite3.connect(path, timeout=lock_seconds, isolation_level=None)) as database:
        try:
            database.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            pass  # it is no database, so nobody writes it
        path.unlink(missing_ok=True)


def is_locked(error: sqlite3.Error) -> bool:
    """Returns whether an error says that others have the file all the time."""
    return "locked" in str(error)
