"""The two folders of a store: entries, each in a file of its own, and objects, which are named by what is in them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fusioncache.process.places import remove, set_aside
from fusioncache.store.entry import DIGEST, ID, LARGEST, Entry, decode_entry, encode_entry
from fusioncache.store.errors import Refusal
from fusioncache.store.files import find_litter, publish, read_private, scan_shards

_INODE = (1 << 63) - 1  # so that the index can hold it


@dataclass(frozen=True, slots=True)
class EntryFile:
    """The file of an entry.

    Attributes:
        size: in bytes.
        used: when it was last used, in nanoseconds since the epoch.
        inode: another one when it was replaced.
    """

    size: int
    used: int
    inode: int


class EntryFolder:
    """The files in ``entries/``. When one was last used is its file's time of modification."""

    def __init__(self, folder: Path):
        self._folder = folder

    def exists(self, id_: str) -> bool:
        """Returns whether there is a file, whatever is in it."""
        return os.path.lexists(self._path(id_))

    def get(self, id_: str) -> Entry | None:
        """Returns the entry; None if there is none.

        Raises:
            Refusal: if what is there is damaged, of another format, or another entry.
            OSError: if it cannot be read.
        """
        content = read_private(self._path(id_), LARGEST)
        if content is None:
            return None
        entry = decode_entry(content)
        if entry.id != id_:
            raise Refusal("an entry in the place of another", id_)
        return entry

    def put(self, entry: Entry) -> int:
        """Publishes an entry in place of any that is there. Returns its size.

        Raises:
            Refusal: if it is too long.
            OSError: if it cannot be written.
        """
        content = encode_entry(entry)
        if len(content) > LARGEST:
            raise Refusal("a key that is too long")
        _publish(self._path(entry.id), content)
        return len(content)

    def touch(self, id_: str) -> None:
        """Notes that it is being used. Where nothing can be written, nothing is."""
        try:
            os.utime(self._path(id_), follow_symlinks=False)
        except OSError:
            return

    def remove(self, id_: str) -> bool:
        """Removes an entry, if that can be done. Returns whether it was there."""
        return remove(self._path(id_))

    def find(self, id_: str) -> EntryFile | None:
        """Returns the file of one entry; None if there is none."""
        try:
            return _describe_file(os.lstat(self._path(id_)))
        except OSError:
            return None

    def list_files(self) -> dict[str, EntryFile]:
        """Returns the files that are there, by id, whatever is in them. Files of other names are somebody else's."""
        files = {}
        for file in scan_shards(self._folder):
            if ID.fullmatch(file.name):
                with suppress(FileNotFoundError):
                    files[file.name] = _describe_file(file.stat(follow_symlinks=False))
        return files

    def find_litter(self) -> Iterator[Path]:
        """Returns what is left of files that were never published. While somebody writes, theirs too."""
        return find_litter(self._folder)

    def _path(self, id_: str) -> Path:
        return self._folder / id_[:2] / id_


def _publish(path: Path, content: bytes) -> None:
    """Publishes a file, after what is in the place of its folder and is none was set aside."""
    with suppress(OSError):
        if not stat.S_ISDIR(os.lstat(path.parent).st_mode):
            set_aside(path.parent)
    publish(path, content)


def _describe_file(status: os.stat_result) -> EntryFile:
    return EntryFile(status.st_size, status.st_mtime_ns, status.st_ino & _INODE)


class ObjectFolder:
    """The files in ``objects/``. They never change; a file that is not what its name says counts as not there."""

    def __init__(self, folder: Path):
        self._folder = folder

    def put(self, content: bytes) -> str:
        """Stores a content and returns its digest. One that is there already is verified, and replaced if it is broken.

        Raises:
            OSError: if it cannot be written.
        """
        digest = hashlib.sha256(content).hexdigest()
        try:
            there = self.get(digest, len(content)) is not None
        except Refusal:
            there = False
        if not there:
            _publish(self._path(digest), content)
        return digest

    def get(self, digest: str, size: int) -> bytes | None:
        """Returns the content with this digest; None if there is none.

        Raises:
            Refusal: if what is there is not that content.
            OSError: if it cannot be read.
        """
        content = read_private(self._path(digest), size)
        if content is None:
            return None
        # Nothing is removed here: another process may have put the right file in its place by now.
        if hashlib.sha256(content).hexdigest() != digest:
            raise Refusal("a wrong checksum", str(self._path(digest)))
        return content

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of each file, by digest. Files of other names are somebody else's."""
        found = {}
        for file in scan_shards(self._folder):
            if DIGEST.fullmatch(file.name):
                with suppress(FileNotFoundError):
                    found[file.name] = file.stat(follow_symlinks=False).st_size
        return found

    def remove(self, digest: str) -> bool:
        """Removes a file, if that can be done. Returns whether it was there."""
        return remove(self._path(digest))

    def find_litter(self) -> Iterator[Path]:
        """Returns what is left of files that were never published. While somebody writes, theirs too."""
        return find_litter(self._folder)

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest
