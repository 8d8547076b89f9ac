"""Orders of values, as sequences of positions: at each index of the new order, where its value was in the old one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter


def pick[T](values: Sequence[T], positions: Sequence[int]) -> tuple[T, ...]:
    """Returns the values at these positions, in this order."""
    return tuple([values[position] for position in positions])


def picker[T](positions: Sequence[int], count: int) -> Callable[[Sequence[T]], Sequence[T]] | None:
    """Returns a fast function that picks from ``count`` values; None if it would return them as they are."""
    if tuple(positions) == tuple(range(count)):
        return None
    if not positions:
        return lambda values: ()
    if len(positions) == 1:
        (position,) = positions
        return lambda values: (values[position],)
    return itemgetter(*positions)


def inverse(positions: Sequence[int]) -> tuple[int, ...]:
    """Returns, for each old position that was picked, in ascending order, the first index where it stands now."""
    first = {position: index for index, position in reversed(list(enumerate(positions)))}
    return tuple([first[position] for position in sorted(first)])
