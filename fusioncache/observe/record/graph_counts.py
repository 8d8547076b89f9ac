"""Counts of programs that are captured in CUDA graphs, on any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from fusioncache.process import forks


class GraphCounts:
    """The running counts of captures.

    Args:
        parent: everything is also counted there.
    """

    def __init__(self, parent: GraphCounts | None = None):
        self._parent = parent
        self._lock = forks.lock()
        self._captures = self._replays = self._gradients_copied = 0
        self._refused: Counter[str] = Counter()

    def count_capture(self) -> None:
        """Counts a forward or backward program that was captured in a CUDA graph."""
        with self._lock:
            self._captures += 1
        if self._parent:
            self._parent.count_capture()

    def count_graph_replay(self) -> None:
        """Counts a call of such a program for which its graph was replayed."""
        with self._lock:
            self._replays += 1
        if self._parent:
            self._parent.count_graph_replay()

    def count_gradients_copied(self, count: int) -> None:
        """Counts gradients that were copied out of a graph's memory after a replay."""
        with self._lock:
            self._gradients_copied += count
        if self._parent:
            self._parent.count_gradients_copied(count)

    def count_not_captured(self, reason: str) -> bool:
        """Counts a program that is not captured, or a call without a replay. Returns whether the reason is new."""
        with self._lock:
            self._refused[reason] += 1
            first = self._refused[reason] == 1
        if self._parent:
            self._parent.count_not_captured(reason)
        return first

    def read(self) -> tuple[int, int, int, Mapping[str, int]]:
        """Returns how many captures, replays and copied gradients there were, and how often what was not captured."""
        with self._lock:
            return self._captures, self._replays, self._gradients_copied, MappingProxyType(dict(self._refused))
