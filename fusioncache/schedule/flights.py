"""Collectives of one kind that were started and not waited for."""

from __future__ import annotations

from collections.abc import Iterator


class Flights:
    """Collectives in flight, with a bound on their bytes.

    Args:
        bound: how many bytes may be in flight; a batch that has more flies alone.
    """

    def __init__(self, bound: int):
        self._bound = bound
        self._bytes: dict[int, int] = {}
        self._total = 0

    def fits(self, size: int) -> bool:
        """Tells whether so many bytes more may be in flight."""
        return not self._bytes or self._total + size <= self._bound

    def start(self, index: int, size: int) -> None:
        """Notes that a collective was started."""
        self._bytes[index] = size
        self._total += size

    def end(self, index: int) -> None:
        """Notes that a collective was waited for."""
        self._total -= self._bytes.pop(index)

    def oldest_first(self) -> Iterator[int]:
        """Yields the collectives in flight in the order in which they were started."""
        yield from tuple(self._bytes)
