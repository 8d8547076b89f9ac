"""Files and folders that only their owner may read: made, freed of what is in their place, and used as databases.

In the place of a file may be a folder, a link, a pipe, a socket, or what cannot be read. It is taken away, but nothing
with a content that may be a user's is deleted: a folder that is not empty gets another name beside its place. A
database is a file of sqlite whose schema has a version.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fusioncache.process.warning import warn


def make_folder(path: Path) -> None:
    """Makes one folder for this user only, if it is not there."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not path.is_dir():
            raise


def make_folders(path: Path) -> None:
    """Makes a folder and those that it is in for this user only, as far as they are not there."""
    for folder in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        make_folder(folder)


def open_privately(path: str, flags: int) -> int:
    """Opens a file, a new one for this user only: an opener for ``open``."""
    return os.open(path, flags, 0o600)


def protect(path: Path) -> None:
    """Takes a file of this user's from all others, as far as that can be done.

    It is not opened: to close one of sqlite's would give up the locks that this process has on it.
    """
    with suppress(OSError):
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077 and status.st_uid == os.geteuid():
            os.chmod(path, 0o600)


ASIDE = "aside-"
"""How the names of things begin that were in the way."""

_LONGEST_NAME = 200


def remove(path: Path) -> bool:
    """Removes a file, or whatever is in its place, if that can be done. Never raises ``OSError``.

    Returns:
        Whether something was there, and is gone.
    """
    try:
        os.unlink(path)
        return True
    except OSError:
        return _remove_folder(path)


def _remove_folder(path: Path) -> bool:
    with suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            try:
                os.rmdir(path)
            except OSError:  # mostly because it is not empty
                set_aside(path)
            return True
    return False


def set_aside(path: Path) -> None:
    """Gives what is in the way another name beside its place, and says so.

    Raises:
        OSError: if that cannot be done.
    """
    aside = path.with_name(f"{ASIDE}{uuid.uuid4().hex[:8]}-{path.name[:_LONGEST_NAME]}")
    os.rename(path, aside)
    warn(f"{path} was in the place of a file of fusioncache's: it is now {aside.name}")


def free(path: Path, *, follows: bool = False) -> bool:
    """Takes away what is in the place of a file, if it is none or cannot be read. Never raises ``OSError``.

    A file that cannot be read is set aside, as its permissions may be intended.

    Args:
        path: of the file.
        follows: whether a link to a file will do.

    Returns:
        Whether the place is free now, and was not.
    """
    try:
        status = os.stat(path) if follows else os.lstat(path)
    except FileNotFoundError:
        return False
    except OSError:  # such as a link to itself
        return remove(path)
    if not stat.S_ISREG(status.st_mode):
        return remove(path)
    if os.access(path, os.R_OK):
        return False
    with suppress(OSError):
        set_aside(path)
        return True
    return False


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of a file.

    Attributes:
        version: is written into the file.
        tables: the statements that make them.
        pragma: a statement that each connection begins with before it writes.
        make_error: makes what is raised for a file at this path that has another version; 0 if it is no file of ours.
        is_vacuumed: whether pages that are freed leave a file that is made now at the end of each transaction.
    """

    version: int
    tables: tuple[str, ...]
    pragma: str
    make_error: Callable[[Path, int], Exception]
    is_vacuumed: bool = False

    @contextmanager
    def open_to_write(self, path: Path, lock_seconds: float) -> Iterator[sqlite3.Connection]:
        """Opens a file for one transaction, which ends with the context. A new file gets the tables.

        Args:
            path: of the file.
            lock_seconds: how long to wait for others that write it.

        Raises:
            sqlite3.Error: if the file cannot be written.
            Exception: what ``make_error`` makes, if the file has another version.
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
    def open_to_read(self, path: Path, lock_seconds: float) -> Iterator[sqlite3.Connection]:
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
        else:
            raise self.make_error(path, version)
        database.execute(f"PRAGMA user_version = {self.version}")


def _read_version(database: sqlite3.Connection) -> int:
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    return version


def remove_database(path: Path, lock_seconds: float) -> None:
    """Removes a file while no process writes it, or what is in its place.

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
            pass  # it is no database, so no process writes it
        path.unlink(missing_ok=True)


def is_locked(error: sqlite3.Error) -> bool:
    """Returns whether an error says that others have the file all the time."""
    return "locked" in str(error)
