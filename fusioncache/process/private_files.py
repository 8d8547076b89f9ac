"""Files and folders that only their owner may read, whatever the process's mask is."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


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
