"""What stands in for the directory where there is none: the same entries, for as long as the process lives."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fusioncache.ir import Key
from fusioncache.process import forks
from fusioncache.store.entry import StoredArtifacts


@dataclass(frozen=True, slots=True)
class _Item:
    key: Key
    stored: StoredArtifacts
    size: int


class MemoryStore:
    """Artifacts by key and backend, the least recently used of them dropped first.

    Args:
        max_bytes: the most that all of them may have.
    """

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._items: OrderedDict[str, _Item] = OrderedDict()
        self.size = 0
        self._lock = forks.lock()
        forks.register(self)

    def load(self, key: Key, id_: str) -> StoredArtifacts | None:
        """Returns the artifacts; None if there are none for this very key."""
        with self._lock:
            item = self._items.get(id_)
            if item is None or item.key != key:
                return None
            self._items.move_to_end(id_)
            return item.stored

    def save(self, key: Key, id_: str, artifacts: Mapping[str, bytes], seconds: float) -> bool:
        """Keeps artifacts, which took these seconds to compile. Returns whether there was room."""
        size = len(key.text) + sum(len(content) for content in artifacts.values())
        if size > self._max_bytes:
            return False
        with self._lock:
            self._drop(id_)
            self._items[id_] = _Item(key, StoredArtifacts(MappingProxyType(dict(artifacts)), seconds), size)
            self.size += size
            while self.size > self._max_bytes:
                self._drop(next(iter(self._items)))
        return True

    def remove(self, id_: str) -> None:
        """Forgets an entry, if it is there."""
        with self._lock:
            self._drop(id_)

    def after_fork(self) -> None:
        """Counts again in a forked child: another thread may have been about to count what it had kept or dropped."""
        self.size = sum(item.size for item in self._items.values())

    def _drop(self, id_: str) -> None:
        item = self._items.pop(id_, None)
        if item:
            self.size -= item.size
