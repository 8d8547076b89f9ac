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


class OtherVersion(Exception):
    """A file has a schema of another version, or is somebody else's.

    Attributes:
        version: the one that it has; 0 if it is no file of ours.
    """

    def __init__(self, version: int):
        super().__init__(f"a schema of version {version}")
        self.version = version


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of a file.

    Attributes:
        version: is written into the file.
        tables: the statements that make them.
        pragma: a statement that each connection begins with before it writes.
        upgrades: make a file of an earlier version one of this version.
        is_vacuumed: whether pages that are freed leave a file that is made now at the end of each transaction.
    """

    version: int
    tables: tuple[str, ...]
    pragma: str
    upgrades: Mapping[int, Upgrade] = field(default_factory=dict)
    is_vacuumed: bool = False

    @contextmanager
    def write(self, path: Path, lock_seconds: float) -> Iterator[sqlite3.Connection]:
        """Opens a file for one transaction, which ends with the context. A new file gets the tables.

        Args:
            path: of the file.
            lock_seconds: how long to wait for others that write it.

        Raises:
            OtherVersion: if the file has another version, and there is no upgrade from that.
            sqlite3.Error: if the file cannot be written.
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
            self._prepare(database)
            yield database

    def require(self, database: sqlite3.Connection) -> None:
        """Raises ``OtherVersion`` if a file that is there has another version."""
        version = _read_version(database)
        if version != self.version:
            raise OtherVersion(version)

    def _prepare(self, database: sqlite3.Connection) -> None:
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
            raise OtherVersion(version)
        database.execute(f"PRAGMA user_version = {self.version}")


def _read_version(database: sqlite3.Connection) -> int:
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    return version


@contextmanager
def read(path: Path, lock_seconds: float) -> Iterator[sqlite3.Connection]:
    """Opens a file that is there, to read rows by the names of their columns.

    Raises:
        sqlite3.Error: if the file cannot be read.
    """
    # Not mode=ro: what a process that died while writing left half done is rolled back by the next to open the file,
    # and that takes a connection which may write. sqlite falls back to reading if the file is protected.
    protect(path)
    address = f"{path.absolute().as_uri()}?mode=rw"
    with closing(sqlite3.connect(address, uri=True, timeout=lock_seconds)) as database:
        database.row_factory = sqlite3.Row
        yield database


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
