"""Whether two keys differ in nothing but sizes, so that one function may serve both."""

from __future__ import annotations

from collections.abc import Mapping

from fusioncache.template.holes import read_holes
from fusioncache.template.skeleton import skeleton_of
from fusioncache.template.text import read_exactly

_MOST = 3


def find_sizes(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[tuple[int, int], ...]:
    """Returns the sizes of A with those of B in their places, each pair once, if the graphs differ in these alone.

    Nothing is returned if they differ in anything else, or cannot be read.
    """
    try:
        one, other = read_exactly(a), read_exactly(b)
    except ValueError:
        return ()
    if skeleton_of(one) != skeleton_of(other):
        return ()
    pairs = dict.fromkeys(zip(read_holes(one), read_holes(other), strict=True))
    differing = [(x, y) for x, y in pairs if x != y]
    sizes = tuple((x, y) for x, y in differing if isinstance(x, int) and isinstance(y, int))
    return sizes if len(sizes) == len(differing) else ()


def write_sizes(sizes: tuple[tuple[int, int], ...], a: str, b: str) -> str:
    """Writes pairs of sizes; ``a`` and ``b`` say where each is."""
    shown = [f"{x} {a}, {y} {b}" for x, y in sizes[:_MOST]]
    more = [f"and {len(sizes) - _MOST} more"] if len(sizes) > _MOST else []
    return "; ".join([*shown, *more])
