"""The directory of a store: where it is, that nobody else can write it, and that it is ours."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from fusioncache.process.places import ASIDE
from fusioncache.process.private_files import make_folder, make_folders
from fusioncache.process.settings import DIRECTORY, find_directory
from fusioncache.store.errors import Refusal, StoreError
from fusioncache.store.files import TEMPORARY, is_owned, is_writable_for_others, publish, read_private

FORMAT = 1
"""The format of everything in the directory. Raise it with every change that an older version could misread."""

FOLDERS = ("objects", "entries", "locks")
INDEX = "index.sqlite"
"""The name of a file that earlier versions kept beside the entries. It goes when it has not been used for long."""
_FORMAT_FILE = "format"
_TAG_FILE = "CACHEDIR.TAG"
_OURS = {*FOLDERS, "uses", _FORMAT_FILE, _TAG_FILE}
_MARK = "fusioncache store, format "
_TAG = b"""Signature: 8a477f597d28d172789f06886806bc55
# This directory holds what fusioncache compiled. It can be removed at any time, and backups can leave it out.
# See https://bford.info/cachedir/
"""
_ELSEWHERE = f"set {DIRECTORY.name} to a directory of your own"


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that was checked.

    Attributes:
        path: with every link resolved.
        identity: device and inode, to see whether it is still the same.
        writable: whether anything can be stored.
    """

    path: Path
    identity: tuple[int, int]
    writable: bool

    def require(self) -> None:
        """Does nothing while the directory is what it was when it was opened.

        Raises:
            StoreError: if it was removed, or something else is in its place.
        """
        try:
            status = os.lstat(self.path)
        except OSError as error:
            raise StoreError(f"{self.path} is gone ({error.strerror}): the next process makes a new one") from error
        if (status.st_dev, status.st_ino) != self.identity:
            raise StoreError(f"{self.path} was replaced while it was in use: start again if this was on purpose")


def default_path() -> Path:
    """Returns where the store is: in ``FUSIONCACHE_DIR`` if that is set, else in the platform's cache directory.

    The format is in its name, so that two versions of fusioncache keep out of each other's way.
    """
    return find_directory() / f"store-{FORMAT}"


def open_directory(path: Path) -> Directory:
    """Makes the directory if it is not there, checks it, and makes it a store if it is empty.

    Raises:
        StoreError: if it cannot be used. A directory that is not ours is left as it is.
    """
    path = path.absolute()
    try:
        make_folders(path)
        path = path.resolve(strict=True)
        status = check(path)
        writable = _claim(path)
    except Refusal as refusal:
        raise StoreError(f"{refusal}: {_ELSEWHERE}") from refusal
    except OSError as error:
        raise StoreError(f"{path} cannot be used ({error.strerror}): {_ELSEWHERE}") from error
    return Directory(path, (status.st_dev, status.st_ino), writable)


def check(path: Path) -> os.stat_result:
    """Checks that an existing directory is one that this user may run the contents of. Changes nothing.

    Raises:
        StoreError: if others own or can write it, it is no store and not empty, or a store of another format.
        OSError: if it cannot be looked at.
    """
    path = path.resolve(strict=True)
    status = os.lstat(path)
    _check_private(path, status)
    for folder in FOLDERS:
        if os.path.lexists(path / folder):
            _check_private(path / folder, os.lstat(path / folder))
    for above in path.parents:
        # Whoever can write there can put another directory in this one's place. With the sticky bit only owners can.
        mode = os.stat(above).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise StoreError(f"everyone can replace {path}, because everyone can write {above}: chmod o-w {above}")
    _check_format(path)
    return status


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise StoreError(f"{path} is no directory: {_ELSEWHERE}")
    if not is_owned(status):
        raise StoreError(f"{path} belongs to another user (uid {status.st_uid}): {_ELSEWHERE}")
    if is_writable_for_others(status):
        raise StoreError(f"others can write {path}, and this user would run what they put there: chmod go-w {path}")


def _check_format(path: Path) -> None:
    """Checks the format. A directory without the format file passes if there is nothing in it that is not ours."""
    content = read_private(path / _FORMAT_FILE, 1000)
    if content is None:
        foreign = sorted(name for name in os.listdir(path) if not _is_ours(name))
        if foreign:
            raise StoreError(f"{path} is no store and not empty ({foreign[0]}): {_ELSEWHERE}, or move it away")
    elif content != _format_text():
        found = content.decode(errors="replace").strip().removeprefix(_MARK)
        raise StoreError(f"{path} has format {found!r}, not {FORMAT}: {_ELSEWHERE}, or move it away")


def _is_ours(name: str) -> bool:
    return name in _OURS or name.startswith((TEMPORARY, INDEX, ASIDE))


def _format_text() -> bytes:
    return f"{_MARK}{FORMAT}\n".encode()


def _claim(path: Path) -> bool:
    """Writes what is not there yet. Returns whether the store can be written.

    Raises:
        OSError: if nothing can be written and there is nothing to read either.
    """
    is_store = (path / _FORMAT_FILE).exists()
    try:
        for folder in FOLDERS:
            make_folder(path / folder)
        if not (path / _TAG_FILE).exists():
            publish(path / _TAG_FILE, _TAG)
        if not is_store:
            publish(path / _FORMAT_FILE, _format_text())
    except OSError:
        if not is_store:
            raise
        return False
    return os.access(path, os.W_OK)
