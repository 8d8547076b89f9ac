"""The two folders of a store: entries, each in a file of its own, and objects, which are named by what is in them."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fusioncache.process.places import remove, set_aside
from fusioncache.store.entry import DIGEST, ID, LARGEST, Entry, decode_entry, encode_entry
from fusioncache.store.errors import Refusal
from fusioncache.store.files import TEMPORARY, publish, read_private, scan_shards


@dataclass(frozen=True, slots=True)
class EntryFile:
    """The file of an entry or of an object.

    Attributes:
        size: in bytes.
        used: when it was last used, in nanoseconds since the epoch.
        inode: another one when it was replaced.
    """

    size: int
    used: int
    inode: int


class _Shards:
    """Files whose names match a pattern, each in a folder that is named by the first two characters of its name."""

    names: re.Pattern[str]

    def __init__(self, folder: Path):
        self._folder = folder

    def path_of(self, name: str) -> Path:
        """Returns where a file is, or would be."""
        return self._folder / name[:2] / name

    def exists(self, name: str) -> bool:
        """Returns whether there is a file, whatever is in it."""
        return os.path.lexists(self.path_of(name))

    def list_files(self) -> dict[str, EntryFile]:
        """Returns the files by their names, whatever is in them. Files of other names are not the store's."""
        files = {}
        for file in scan_shards(self._folder):
            if self.names.fullmatch(file.name):
                with suppress(FileNotFoundError):
                    status = file.stat(follow_symlinks=False)
                    files[file.name] = EntryFile(status.st_size, status.st_mtime_ns, status.st_ino)
        return files

    def remove(self, name: str) -> bool:
        """Removes a file, if that can be done. Returns whether it was there."""
        return remove(self.path_of(name))

    def find_litter(self) -> Iterator[Path]:
        """Returns the files that were never published. While others write, theirs are among them."""
        return (Path(file.path) for file in scan_shards(self._folder) if file.name.startswith(TEMPORARY))

    def _publish(self, name: str, content: bytes) -> None:
        """Publishes a file, after what is in the place of its folder and is none was set aside."""
        path = self.path_of(name)
        with suppress(OSError):
            if not stat.S_ISDIR(os.lstat(path.parent).st_mode):
                set_aside(path.parent)
        publish(path, content)


class EntryFolder(_Shards):
    """The files in ``entries/``. When one was last used is its file's time of modification."""

    names = ID

    def get(self, id_: str) -> Entry | None:
        """Returns the entry; None if there is none.

        Raises:
            Refusal: if what is there is damaged, of another format, or another entry.
            OSError: if it cannot be read.
        """
        content = read_private(self.path_of(id_), LARGEST)
        return None if content is None else decode_entry(content, id_)

    def put(self, entry: Entry) -> int:
        """Publishes an entry in place of any that is there. Returns its size.

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
        """Notes that it is being used. Where nothing can be written, nothing is."""
        with suppress(OSError):
            os.utime(self.path_of(id_), follow_symlinks=False)


class ObjectFolder(_Shards):
    """The files in ``objects/``. They never change; a file that is not what its name says counts as not there."""

    names = DIGEST

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
            self._publish(digest, content)
        return digest

    def get(self, digest: str, size: int) -> bytes | None:
        """Returns the content with this digest; None if there is none.

        Raises:
            Refusal: if what is there is not that content.
            OSError: if it cannot be read.
        """
        content = read_private(self.path_of(digest), size)
        # Nothing is removed here: another process may have put the right file in its place by now.
        if content is not None and hashlib.sha256(content).hexdigest() != digest:
            raise Refusal("a wrong checksum", str(self.path_of(digest)))
        return content

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of each file, by digest."""
        return {digest: file.size for digest, file in self.list_files().items()}
