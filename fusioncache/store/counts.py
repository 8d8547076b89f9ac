"""Counts the failures and refusals of a store by reason, and notifies an observer of transfers from a remote."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from fusioncache.process import forks
from fusioncache.process.warning import warn


class Observer(Protocol):
    """Receives counts of what comes from other machines, under names of ``Stats``."""

    def __call__(self, name: str, number: float = 1, *, of: str | None = None) -> object:
        """Adds a number to a counter, for the reason or part ``of`` if there is one."""


class StoreCounts:
    """Counts failures and refusals of a store, on any thread, and warns once for each reason.

    Attributes:
        observer: receives counts of what comes from a remote.
        bypasses: the number of failures and refusals, by reason.
    """

    def __init__(self) -> None:
        self.observer: Observer = lambda name, number=1, *, of=None: None
        self.bypasses: Counter[str] = Counter()
        self._lock = forks.lock()
        forks.register(self)

    def count_refused_pull(self, reason: str, message: str) -> None:
        """Counts a failed or refused pull from the remote, and warns if it is the first for this reason."""
        self.observer("pull_refused", of=reason)
        self.count_bypass(f"remote: {reason}", message)

    def count_bypass(self, reason: str, message: str) -> None:
        """Counts a failure or refusal, and warns if it is the first for this reason."""
        with self._lock:
            self.bypasses[reason] += 1
            first = self.bypasses[reason] == 1
        if first:
            warn(message)

    def after_fork(self) -> None:
        """Resets the counts in a forked child."""
        self.bypasses.clear()
