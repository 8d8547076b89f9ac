"""Patterns: skeletons made ready to be compared with regions, because a size that is new is known by its skeleton."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import count
from math import prod
from typing import Any

from fusioncache.ir import Graph, Instance, Ref, TensorType, Value
from fusioncache.ir.permutation import inverse, pick
from fusioncache.template.holes import fill_holes, take_holes


def outline_of(graph: Graph) -> Hashable:
    """Returns something that is equal for all graphs with one skeleton, and is quickly had."""
    return tuple([op.name for op in graph.ops]), len(graph.inputs), graph.sizes, graph.outputs


class Pattern:
    """A graph with nothing in its holes, and the order in which these are read.

    Args:
        graph: one of those that have the skeleton.
        order: in which the holes of the inputs are read; by default that of the inputs.

    Raises:
        TypeError: if the graph has symbolic sizes.
    """

    def __init__(self, graph: Graph, order: Sequence[int] | None = None):
        self._order = tuple(range(len(graph.inputs)) if order is None else order)
        self._blank = self._take_holes(graph)[0]
        self._shapes = _list_shapes(self._blank)

    def match(self, graph: Graph) -> tuple[Value, ...] | None:
        """Returns what is in each hole of a graph; None if it has another skeleton, or another order of its values."""
        if len(graph.inputs) != len(self._order):
            return None
        blank, values = self._take_holes(graph)
        return values if blank == self._blank else None

    def count_elements(self, values: Sequence[Any]) -> int:
        """Returns how many elements the largest tensor of a graph has.

        Args:
            values: what is in its holes.
        """
        return max([known * prod([values[hole] for hole in holes]) for known, holes in self._shapes], default=0)

    def _take_holes(self, graph: Graph) -> tuple[Graph, tuple[Value, ...]]:
        return take_holes(Graph(pick(graph.inputs, self._order), graph.ops, graph.outputs, graph.sizes))


def pattern_of(instance: Instance) -> Pattern:
    """Returns the pattern of regions, which reads their holes as they come in the order of the template."""
    return Pattern(instance.region, inverse(instance.inputs))


def _list_shapes(blanked: Graph) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Returns of each shape the product of the sizes that are known, and which holes have the others."""
    numbers = count()
    numbered = fill_holes(blanked, lambda value: Ref(next(numbers)))
    types = [*numbered.inputs, *(type_ for op in numbered.ops for type_ in op.outputs)]
    shapes = dict.fromkeys(type_.shape for type_ in types if isinstance(type_, TensorType))
    return tuple([_split_shape(shape) for shape in shapes])


def _split_shape(shape: tuple[int | Ref, ...]) -> tuple[int, tuple[int, ...]]:
    known = [size for size in shape if isinstance(size, int)]
    return prod(known), tuple([size.index for size in shape if isinstance(size, Ref)])
