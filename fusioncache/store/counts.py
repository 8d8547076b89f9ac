"""What happened to a store in this process, and why it was not used as it should have been."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from fusioncache.process import forks
from fusioncache.process.warning import warn


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What this process did with a store.

    Attributes:
        hits: loads that found what they wanted.
        misses: loads that did not.
        saves: entries that were published.
        pulls: entries that came from the remote, by the name of the key that signed their pack. Loads that find them
            are hits.
        bypasses: how often the store was not used as it should have been, by reason.
    """

    hits: int
    misses: int
    saves: int
    pulls: MappingProxyType[str, int]
    bypasses: MappingProxyType[str, int]


class Observer(Protocol):
    """Is told what comes from other machines, by a name of ``Stats``."""

    def __call__(self, name: str, number: float = 1, *, of: str | None = None) -> object:
        """Counts something, by a reason or a part if there is one."""


class StoreCounts:
    """Counts what happens to a store, on any thread, and warns of each sort of failure once.

    Attributes:
        observer: is told what comes from a remote.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._pulls: Counter[str] = Counter()
        self._bypasses: Counter[str] = Counter()
        self.observer: Observer = lambda name, number=1, *, of=None: None
        self._lock = forks.lock()
        forks.register(self)

    def count(self, what: str) -> None:
        """Counts one of the ``hits``, ``misses`` or ``saves``."""
        with self._lock:
            self._counts[what] += 1

    def count_pulls(self, signer: str, number: int) -> None:
        """Counts entries that came from the remote."""
        with self._lock:
            self._pulls[signer] += number
        self.observer("pulled", number, of=signer)

    def count_refused_pull(self, reason: str, message: str) -> None:
        """Counts what does not come from the remote, and warns if this is the first time for this reason."""
        self.observer("pull_refused", of=reason)
        self.count_bypass(f"remote: {reason}", message)

    def count_bypass(self, reason: str, message: str) -> None:
        """Counts something that did not go as it should, and warns if this is the first time for this reason."""
        with self._lock:
            self._bypasses[reason] += 1
            first = self._bypasses[reason] == 1
        if first:
            warn(message)

    def stats(self) -> StoreStats:
        """Returns the counts now."""
        with self._lock:
            pulls, bypasses = (MappingProxyType(dict(each)) for each in (self._pulls, self._bypasses))
            hits, misses, saves = (self._counts[name] for name in ("hits", "misses", "saves"))
            return StoreStats(hits, misses, saves, pulls, bypasses)

    def after_fork(self) -> None:
        """Forgets, in a forked child, what the parent counted."""
        self._counts.clear()
        self._pulls.clear()
        self._bypasses.clear()
