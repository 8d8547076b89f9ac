"""The entries of a store, each in a file of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fusioncache.store.entry import ID, LARGEST, Entry, decoded, encoded
from fusioncache.store.errors import Refusal
from fusioncache.store.files import fanned_out, litter, publish, read_private, remove

_INODE = (1 << 63) - 1  # so that the index can hold it


@dataclass(frozen=True, slots=True)
class Found:
    """The file of an entry.

    Attributes:
        size: in bytes.
        used: when it was last used, in nanoseconds since the epoch.
        inode: another one when it was replaced.
    """

    size: int
    used: int
    inode: int


class Entries:
    """The files in ``entries/``. When one was last used is its file's time of modification."""

    def __init__(self, folder: Path):
        self._folder = folder

    def exists(self, id_: str) -> bool:
        """Whether there is a file, whatever is in it."""
        return os.path.lexists(self._path(id_))

    def get(self, id_: str) -> Entry | None:
        """The entry; None if there is none.

        Raises:
            Refusal: if what is there is damaged, of another format, or another entry.
            OSError: if it cannot be read.
        """
        content = read_private(self._path(id_), LARGEST)
        if content is None:
            return None
        entry = decoded(content)
        if entry.id != id_:
            raise Refusal("an entry in the place of another", id_)
        return entry

    def put(self, entry: Entry) -> int:
        """Publishes an entry in place of any that is there. Returns its size.

        Raises:
            Refusal: if it is too long.
            OSError: if it cannot be written.
        """
        content = encoded(entry)
        if len(content) > LARGEST:
            raise Refusal("a key that is too long")
        publish(self._path(entry.id), content)
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

    def find(self, id_: str) -> Found | None:
        """The file of one entry; None if there is none."""
        try:
            return _found(os.lstat(self._path(id_)))
        except OSError:
            return None

    def found(self) -> dict[str, Found]:
        """The files that are there, by id, whatever is in them. Files of other names are somebody else's."""
        files = {}
        for file in fanned_out(self._folder):
            if ID.fullmatch(file.name):
                with suppress(FileNotFoundError):
                    files[file.name] = _found(file.stat(follow_symlinks=False))
        return files

    def litter(self) -> Iterator[Path]:
        """What is left of files that were never published. While somebody writes, theirs too."""
        return litter(self._folder)

    def _path(self, id_: str) -> Path:
        return self._folder / id_[:2] / id_


def _found(status: os.stat_result) -> Found:
    return Found(status.st_size, status.st_mtime_ns, status.st_ino & _INODE)
