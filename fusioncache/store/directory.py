"""The directory of a store: its path, its checks (no other user can write it, it is a store), and its two folders.

Each entry has its own file, and each object has a file that is named by the digest of its content.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fusioncache.process.files import ASIDE, make_folder, make_folders, remove, set_aside
from fusioncache.process.settings import DIRECTORY, find_directory
from fusioncache.store.entry import DIGEST, ID, LARGEST, Entry, decode_entry, encode_entry
from fusioncache.store.files import (
    TEMPORARY,
    Refusal,
    StoreError,
    is_owned,
    is_writable_for_others,
    publish,
    read_private,
    scan_shards,
)

FORMAT = 1
"""The format of everything in the directory. Raise it with every change that an older version could misread."""

FOLDERS = ("objects", "entries", "locks")
_FORMAT_FILE = "format"
_TAG_FILE = "CACHEDIR.TAG"
_OURS = {*FOLDERS, "remotes", _FORMAT_FILE, _TAG_FILE}
_MARK = "fusioncache store, format "
_TAG = b"""Signature: 8a477f597d28d172789f06886806bc55
# This directory holds what fusioncache compiled. It can be removed at any time, and backups can leave it out.
# See https://bford.info/cachedir/
"""
_ELSEWHERE = f"set {DIRECTORY.name} to a directory of your own"


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that passed the checks.

    Attributes:
        path: with every link resolved.
        identity: device and inode, which detect a replaced directory.
        writable: whether anything can be stored.
    """

    path: Path
    identity: tuple[int, int]
    writable: bool

    def require(self) -> None:
        """Checks that the directory was neither removed nor replaced since it was opened.

        Raises:
            StoreError: if it was.
        """
        try:
            status = os.lstat(self.path)
        except OSError as error:
            raise StoreError(f"{self.path} is gone ({error.strerror}): the next process makes a new one") from error
        if (status.st_dev, status.st_ino) != self.identity:
            raise StoreError(f"{self.path} was replaced while it was in use: start again if this was on purpose")


def default_path() -> Path:
    """Returns the path of the store: in ``FUSIONCACHE_DIR`` if that is set, else in the platform's cache directory.

    Its name contains the format, so that versions of fusioncache with different formats use different stores.
    """
    return find_directory() / f"store-{FORMAT}"


def open_directory(path: Path) -> Directory:
    """Returns the directory at a path. Makes it if it does not exist, checks it, and makes it a store if it is empty.

    Raises:
        StoreError: if it cannot be used. A foreign directory is not changed.
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
    """Checks that this user can safely run the contents of an existing directory. Changes nothing.

    Raises:
        StoreError: if others own or can write it, it is neither a store nor empty, or it is a store of another format.
        OSError: if it cannot be inspected.
    """
    path = path.resolve(strict=True)
    status = os.lstat(path)
    _check_private(path, status)
    for folder in FOLDERS:
        if os.path.lexists(path / folder):
            _check_private(path / folder, os.lstat(path / folder))
    for above in path.parents:
        # A user with write access there can replace this directory. With the sticky bit only owners can.
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
        advice = _ELSEWHERE if status.st_mode & stat.S_ISVTX else f"chmod go-w {path}"  # /tmp is meant for all users
        raise StoreError(f"others can write {path}, and this user would run what they put there: {advice}")


def _check_format(path: Path) -> None:
    """Checks the format. A directory without the format file passes if it contains nothing foreign."""
    content = read_private(path / _FORMAT_FILE, 1000)
    if content is None:
        names = sorted(name for name in os.listdir(path) if not name.startswith((TEMPORARY, ASIDE)))
        foreign = [name for name in names if name not in _OURS]
        if foreign:
            raise StoreError(f"{path} is no store and not empty ({foreign[0]}): {_ELSEWHERE}, or move it away")
    elif content != _format_text():
        found = content.decode(errors="replace").strip().removeprefix(_MARK)
        raise StoreError(f"{path} has format {found!r}, not {FORMAT}: {_ELSEWHERE}, or move it away")


def _format_text() -> bytes:
    return f"{_MARK}{FORMAT}\n".encode()


def _claim(path: Path) -> bool:
    """Creates missing folders and files of a store. Returns True if the store can be written.

    Raises:
        OSError: if they cannot be written and it is not a store yet.
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


@dataclass(frozen=True, slots=True)
class EntryFile:
    """The file of an entry or of an object.

    Attributes:
        size: in bytes.
        used: when it was last used, in nanoseconds since the epoch.
    """

    size: int
    used: int


class _Shards:
    """Files whose names match a pattern, each in a folder named by the first two characters of the file's name."""

    names: re.Pattern[str]

    def __init__(self, folder: Path):
        self._folder = folder

    def path_of(self, name: str) -> Path:
        """Returns the path of a file, which may not exist."""
        return self._folder / name[:2] / name

    def exists(self, name: str) -> bool:
        """True if the file exists, with any content."""
        return os.path.lexists(self.path_of(name))

    def list_files(self) -> dict[str, EntryFile]:
        """Returns the files by name, with any content. Files with other names are not the store's."""
        files = {}
        for file in scan_shards(self._folder):
            if self.names.fullmatch(file.name):
                with suppress(FileNotFoundError):
                    status = file.stat(follow_symlinks=False)
                    files[file.name] = EntryFile(status.st_size, status.st_mtime_ns)
        return files

    def remove(self, name: str) -> bool:
        """Removes a file, if possible. Returns True if it existed and is gone."""
        return remove(self.path_of(name))

    def find_litter(self) -> Iterator[Path]:
        """Returns the unpublished files. They include files that other processes are writing now."""
        return (Path(file.path) for file in scan_shards(self._folder) if file.name.startswith(TEMPORARY))

    def _publish(self, name: str, content: bytes) -> None:
        """Publishes a file. If its folder's path is no folder, that is set aside first."""
        path = self.path_of(name)
        with suppress(OSError):
            if not stat.S_ISDIR(os.lstat(path.parent).st_mode):
                set_aside(path.parent)
        publish(path, content)


class EntryFolder(_Shards):
    """The files in ``entries/``. The modification time of a file is the last use of its entry."""

    names = ID

    def get(self, id_: str) -> Entry | None:
        """Returns the entry, or None.

        Raises:
            Refusal: if the file is damaged, of another format, or of another entry.
            OSError: if it cannot be read.
        """
        content = read_private(self.path_of(id_), LARGEST)
        return None if content is None else decode_entry(content, id_)

    def put(self, entry: Entry) -> int:
        """Publishes an entry, which replaces any that exists. Returns its size in bytes.

        Raises:
            Refusal: if it is too long.
            OSError: if it cannot be written.
        """
        content = encode_entry(entry)
        if len(content) > LARGEST:
            raise Refusal("a key that is too long")
        self._publish(entry.id, content)
        return len(content)

    def touch(self, id_: str) -> None:
        """Records a use of an entry, if the file can be written."""
        with suppress(OSError):
            os.utime(self.path_of(id_), follow_symlinks=False)


class ObjectFolder(_Shards):
    """The files in ``objects/``. They never change; a file whose content does not match its name counts as missing."""

    names = DIGEST

    def put(self, content: bytes) -> str:
        """Stores a content and returns its digest. An existing file is verified, and replaced if it is damaged.

        Raises:
            OSError: if it cannot be written.
        """
        digest = hashlib.sha256(content).hexdigest()
        try:
            there = self.get(digest, len(content)) is not None
        except Refusal:
            there = False
        if not there:
            self._publish(digest, content)
        return digest

    def get(self, digest: str, size: int) -> bytes | None:
        """Returns the content with this digest, or None.

        Raises:
            Refusal: if the file has another content.
            OSError: if it cannot be read.
        """
        content = read_private(self.path_of(digest), size)
        # The file is not removed: another process may have replaced it by the right one meanwhile.
        if content is not None and hashlib.sha256(content).hexdigest() != digest:
            raise Refusal("a wrong checksum", str(self.path_of(digest)))
        return content

    def has(self, digest: str, size: int) -> bool:
        """True if there is a file of this name and length. Does not read it."""
        with suppress(OSError):
            return os.lstat(self.path_of(digest)).st_size == size
        return False

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of each file, by digest."""
        return {digest: file.size for digest, file in self.list_files().items()}
