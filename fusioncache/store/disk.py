"""A store's directory in use: loads and saves whole entries. Says what goes wrong by raising."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from fusioncache.ir import Key
from fusioncache.process import forks
from fusioncache.store.directory import Directory
from fusioncache.store.entry import OTHER_FORMAT, Artifact, Entry, StoredArtifacts
from fusioncache.store.errors import Refusal
from fusioncache.store.evict import SweepResult, measure, sweep
from fusioncache.store.folders import EntryFolder, ObjectFolder
from fusioncache.store.locks import hold_alone, hold_shared

OTHER_KEY = "an entry for another key with the same digest"

_FULL = "the store is full of what another version of fusioncache stored"
_FULL_SECONDS = 60.0
"""How long a store that could not be made smaller is left alone."""

_PARTS = 16
"""A process looks at the size of the store again when it has added this part of what may be in it, so that what others
add is seen too."""


class DiskStore:
    """Entries and objects of one directory.

    Args:
        directory: that was checked.
        max_bytes: the most that all files may have.
        max_age: seconds after which an unused entry is removed.

    Attributes:
        report: is told what does not go as it should and stops nothing: a reason to count, and what to say.
    """

    def __init__(self, directory: Directory, max_bytes: int, max_age: float):
        self.directory = directory
        self.entries = EntryFolder(directory.path / "entries")
        self._objects = ObjectFolder(directory.path / "objects")
        self.report: Callable[[str, str], None] = lambda reason, message: None
        self._lock_path = directory.path / "locks" / "store"
        self.max_bytes = max_bytes
        self._max_age = max_age
        self._size: int | None = None
        self._since = 0
        self._full_until = 0.0
        self._lock = forks.lock()

    def load(self, key: Key, id_: str) -> StoredArtifacts | None:
        """Returns the artifacts of an entry, every byte verified; None if there is no entry.

        Raises:
            Refusal: if what is there is not for this very key, or not what was saved.
            StoreError: if the directory is no longer what it was.
            OSError: if it cannot be read.
        """
        self.directory.require()
        if not self.entries.exists(id_):
            return None
        if self.directory.writable:
            self.entries.touch(id_)
        entry = self._entry(id_, key.text)
        try:
            return None if entry is None else StoredArtifacts(self.contents(entry), entry.seconds)
        except Refusal:
            if self.entries.exists(id_):
                raise
            return None  # it was removed meanwhile

    def contents(self, entry: Entry) -> dict[str, bytes]:
        """Returns the artifacts of an entry, every byte verified.

        Raises:
            Refusal: if one is not there, or not what was saved.
            OSError: if one cannot be read.
        """
        return {artifact.name: self.content(artifact) for artifact in entry.artifacts}

    def content(self, artifact: Artifact) -> bytes:
        """Returns one artifact, every byte verified.

        Raises:
            Refusal: if it is not there, or not what was saved.
            OSError: if it cannot be read.
        """
        content = self._objects.get(artifact.object, artifact.size)
        if content is None:
            raise Refusal("an entry without its artifacts", artifact.object)
        return content

    def list_entries(self) -> Iterator[Entry]:
        """Yields all entries that can be read.

        Raises:
            OSError: if the directory cannot be read.
        """
        for id_ in self.entries.list_files():
            with suppress(Refusal, OSError):
                entry = self.entries.get(id_)
                if entry is not None:
                    yield entry

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of all objects, by digest."""
        return self._objects.sizes()

    def save(self, entry: Entry, contents: Mapping[str, bytes]) -> Entry | None:
        """Publishes an entry with these artifacts, whatever it lists. None if one for this key is there and whole.

        Raises:
            Refusal: if it does not fit, or another key has its place.
            StoreError: if the directory is no longer what it was.
            OSError: if it cannot be written.
        """
        self.directory.require()
        self._make_room(len(entry.text) + sum(map(len, contents.values())))
        with hold_shared(self._lock_path, self.report):
            if self._is_whole(entry):
                return None
            artifacts = tuple(
                Artifact(name, self._objects.put(content), len(content)) for name, content in sorted(contents.items())
            )
            entry = replace(entry, artifacts=artifacts)
            size = self.entries.put(entry) + entry.size
        with self._lock:
            self._size = (self._size or 0) + size
            self._since += size
        return entry

    def remove(self, id_: str) -> None:
        """Removes an entry. Its objects go with the next sweep."""
        self.directory.require()
        self.entries.remove(id_)

    def sweep(self, room: int = 0) -> SweepResult:
        """Removes what is too old or too much, and what killed processes left, so that ``room`` bytes fit.

        Raises:
            Refusal: if others save all the time.
            StoreError: if the directory is no longer what it was.
            OSError: if it cannot be read, or there are no locks.
        """
        self.directory.require()
        with self._lock:
            return self._sweep(room)

    def plan(self) -> SweepResult:
        """Returns what ``sweep`` would remove now. Removes nothing.

        Raises:
            StoreError: if the directory is no longer what it was.
            OSError: if it cannot be read.
        """
        self.directory.require()
        return sweep(self.directory.path, self.entries, self._objects, self.max_bytes, self._max_age, dry_run=True)

    def _entry(self, id_: str, text: str) -> Entry | None:
        entry = self.entries.get(id_)
        if entry is not None and entry.text != text:
            raise Refusal(OTHER_KEY, id_)
        return entry

    def _is_whole(self, wanted: Entry) -> bool:
        try:
            entry = self._entry(wanted.id, wanted.text)
            return entry is not None and self.contents(entry) is not None
        except Refusal as refusal:
            if refusal.reason in (OTHER_KEY, OTHER_FORMAT):
                raise  # it is as good as this one, for another process
            return False

    def _make_room(self, size: int) -> None:
        if size > self.max_bytes:
            raise Refusal("larger than the store may be")
        with self._lock:
            if time.monotonic() < self._full_until:
                raise Refusal(_FULL)
            if self._size is None or self._since > self.max_bytes // _PARTS:
                self._size, age = measure(self.entries, self._objects)
                self._since = 0
                if age > self._max_age:
                    with suppress(Refusal):  # there may be room all the same
                        self._sweep(size)
            if self._size + size > self.max_bytes and self._sweep(size).bytes_left + size > self.max_bytes:
                self._full_until = time.monotonic() + _FULL_SECONDS
                raise Refusal(_FULL)

    def _sweep(self, room: int) -> SweepResult:
        with hold_alone(self._lock_path):
            swept = sweep(self.directory.path, self.entries, self._objects, self.max_bytes - room, self._max_age)
        self._size, self._since = swept.bytes_left, 0
        return swept
