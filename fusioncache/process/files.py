"""Files and folders that only their owner may read: made, and freed of what is in their place.

In the place of a file may be a folder, a link, a pipe, a socket, or what cannot be read. It is taken away, but nothing
with a content that may be a user's is deleted: a folder that is not empty gets another name beside its place.
"""

from __future__ import annotations

import os
import stat
import uuid
from contextlib import suppress
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
