"""Counts, by reason, how often a store was not used as it should have been, and tells an observer of remotes."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from fusioncache.process import forks
from fusioncache.process.warning import warn


class Observer(Protocol):
    """Is told what comes from other machines, by a name of ``Stats``."""

    def __call__(self, name: str, number: float = 1, *, of: str | None = None) -> object:
        """Counts something, by a reason or a part if there is one."""


class StoreCounts:
    """Counts what goes wrong in a store, on any thread, and warns of each sort of failure once.

    Attributes:
        observer: is told what comes from a remote.
        bypasses: how often the store was not used as it should have been, by reason.
    """

    def __init__(self) -> None:
        self.observer: Observer = lambda name, number=1, *, of=None: None
        self.bypasses: Counter[str] = Counter()
        self._lock = forks.lock()
        forks.register(self)

    def count_refused_pull(self, reason: str, message: str) -> None:
        """Counts what does not come from the remote, and warns if this is the first time for this reason."""
        self.observer("pull_refused", of=reason)
        self.count_bypass(f"remote: {reason}", message)

    def count_bypass(self, reason: str, message: str) -> None:
        """Counts something that did not go as it should, and warns if this is the first time for this reason."""
        with self._lock:
            self.bypasses[reason] += 1
            first = self.bypasses[reason] == 1
        if first:
            warn(message)

    def after_fork(self) -> None:
        """Forgets, in a forked child, what the parent counted."""
        self.bypasses.clear()
