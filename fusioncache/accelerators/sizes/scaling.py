"""Argument sizes at a length that no call has had yet, extrapolated from two known lengths."""

from __future__ import annotations

from collections.abc import Iterable

from fusioncache.accelerators.sizes.values import ArgumentSizes, name_argument
from fusioncache.ir.errors import Declined, Scope

MOST_LENGTHS = 256
"""The largest number of lengths that a user may list. Each has as many executables as the model has templates."""


def check_lengths(lengths: Iterable[int] | None) -> tuple[int, ...]:
    """Returns the lengths that a user listed, without duplicates, in their order; none for ``None``.

    Raises:
        TypeError: if a length is not an integer.
        ValueError: if a length is less than 2, or there are more than ``MOST_LENGTHS``.
    """
    if lengths is None:
        return ()
    if isinstance(lengths, str) or not isinstance(lengths, Iterable):
        raise TypeError(f"lengths must be several whole numbers, as in range(32, 513, 32), got {lengths!r}")
    found: dict[int, None] = {}
    for length in lengths:  # an iterable may be endless: it is not read beyond the limit
        if not isinstance(length, int) or isinstance(length, bool):
            raise TypeError(f"lengths must be whole numbers, as in range(32, 513, 32), got {length!r} among them")
        if length < 2:
            raise ValueError(f"each of lengths must be at least 2, got {length}: a length of 1 is a program of its own")
        found[length] = None
        if len(found) > MOST_LENGTHS:
            raise ValueError(f"at most {MOST_LENGTHS} lengths can be compiled ahead, got more: use longer steps")
    return tuple(found)


def scale_sizes(one: ArgumentSizes, other: ArgumentSizes, length: int) -> ArgumentSizes:
    """Returns the sizes that the arguments of a call have at a length.

    The length is the last size that differs in the first argument with a difference. Each other size that differs must
    be the length plus a constant, or the length times a constant, at both known lengths.

    Args:
        one: the sizes at one length.
        other: the sizes of the same arguments at another length.
        length: the wanted length.

    Raises:
        Declined: if all sizes are equal, or one is neither such a sum nor such a product.
    """
    pairs = {place: list(zip(sizes, other[place], strict=True)) for place, sizes in one.items()}
    lengths = next((pair for sizes in pairs.values() for pair in reversed(sizes) if pair[0] != pair[1]), None)
    if lengths is None:
        raise Declined("no size differs", Scope.LENGTH)
    return {
        place: tuple(_scale(pair, lengths, length, name_argument(place)) for pair in sizes)
        for place, sizes in pairs.items()
    }


def _scale(pair: tuple[int, int], lengths: tuple[int, int], length: int, name: str) -> int:
    (one, other), (first, second) = pair, lengths
    if one == other:
        return one
    if other - one == second - first:
        return one + length - first
    if one * second == other * first and one * length % first == 0:
        return one * length // first
    raise Declined(f"a size of {name} does not follow from the length", Scope.LENGTH)
