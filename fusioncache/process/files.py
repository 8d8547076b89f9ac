"""Private files and folders: creation, and removal of obstacles at their paths.

A file's path may be a folder, a link, a pipe, a socket, or unreadable. Such an obstacle is removed, but content that
may be a user's is never deleted: a folder that is not empty is set aside (renamed in its parent).
"""

from __future__ import annotations

import os
import stat
import uuid
from contextlib import suppress
from pathlib import Path

from fusioncache.process.warning import warn


def make_folder(path: Path) -> None:
    """Makes one folder for this user only, if it does not exist."""
    path.mkdir(0o700, exist_ok=True)


def make_folders(path: Path) -> None:
    """Makes a folder and its missing parents, for this user only."""
    for folder in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        make_folder(folder)


def open_privately(path: str, flags: int) -> int:
    """Opens a file; a new one is for this user only. Serves as ``opener`` of ``open``."""
    return os.open(path, flags, 0o600)


def protect(path: Path) -> None:
    """Removes other users' permissions on a file of this user, if possible.

    Does not open the file: to close a file of sqlite would release this process's locks on it.
    """
    with suppress(OSError):
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077 and status.st_uid == os.geteuid():
            os.chmod(path, 0o600)


ASIDE = "aside-"
"""Prefix of the names of obstacles that were set aside."""

_LONGEST_NAME = 200


def remove(path: Path) -> bool:
    """Removes a file, or an obstacle at its path, if possible. Never raises ``OSError``.

    Returns:
        Whether something existed and is gone.
    """
    with suppress(OSError):
        os.unlink(path)
        return True
    with suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            try:
                os.rmdir(path)
            except OSError:  # mostly because it is not empty
                set_aside(path)
            return True
    return False


def set_aside(path: Path) -> None:
    """Renames an obstacle within its folder, and warns.

    Raises:
        OSError: if it cannot be renamed.
    """
    aside = path.with_name(f"{ASIDE}{uuid.uuid4().hex[:8]}-{path.name[:_LONGEST_NAME]}")
    os.rename(path, aside)
    warn(f"{path} was in the place of a file of fusioncache's: it is now {aside.name}")


def free(path: Path, *, follows: bool = False) -> bool:
    """Removes an obstacle at a file's path: anything but a readable regular file. Never raises ``OSError``.

    An unreadable file is set aside, because its permissions may be intended.

    Args:
        path: of the file.
        follows: whether a link to a file is acceptable.

    Returns:
        Whether an obstacle was there and is gone.
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
