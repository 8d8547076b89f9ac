"""Skeletons: canonical forms with nothing in their holes, which find what a region may be generalized with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusioncache.ir import Graph, Value
from fusioncache.template.holes import fill_in_order, may_vary, read_holes, take_holes


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A canonical form in which sizes and eligible numbers are holes.

    Two regions have equal skeletons if they differ at most in what is in their holes. As the canonical order does not
    look at that, the n-th hole of one is at the place of the n-th hole of the other.

    Attributes:
        graph: in canonical order, its holes blank. It is no region, nor is its text one of a region.
    """

    graph: Graph


def skeleton_of(graph: Graph) -> Skeleton:
    """Returns the skeleton of a graph in canonical order."""
    return Skeleton(take_holes(graph)[0])


def check_fits(skeleton: Skeleton, instances: Sequence[Sequence[Value]]) -> None:
    """Checks that each of these can be what is in the holes of a region with this skeleton.

    Raises:
        ValueError: if one cannot.
    """
    kinds = [type(hole) for hole in read_holes(skeleton.graph)]
    for values in instances:
        if [type(value) for value in values] != kinds:
            raise ValueError("more values than holes, or fewer, or a size where a number stands")
        _check_holes(values)


def fill(skeleton: Skeleton, values: Sequence[Value]) -> Graph:
    """Returns the canonical graph with this skeleton and these values in its holes. ``read_holes`` is the way back.

    Raises:
        ValueError: if there are more values than holes, or fewer, or one cannot be in its hole.
    """
    _check_holes(values)
    return fill_in_order(skeleton.graph, values)


def _check_holes(values: Sequence[Value]) -> None:
    try:
        refused = [value for value in values if not may_vary(value)]
    except OverflowError as error:
        raise ValueError("a number that no hole holds") from error
    if refused:
        raise ValueError(f"{refused[0]} in a hole")
