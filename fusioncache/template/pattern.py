"""Patterns: skeletons made ready to be held against graphs, because a size that nobody had is known by its skeleton.

Blanking a graph to compare skeletons writes it anew, and so does bringing a region into the order of its template. A
pattern goes over a graph once, and writes down what is in holes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import count
from math import prod
from typing import Any

from fusioncache.ir import Arg, Const, Graph, Instance, Op, Ref, TensorType, Value, ValueType
from fusioncache.ir.permutation import inverse, pick
from fusioncache.template.holes import BLANK_NUMBER, BLANK_SIZE, Filling, blank, fill_holes, may_vary


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
        self._blank = blank(graph)
        self._order = tuple(range(len(graph.inputs)) if order is None else order)
        self._inputs = pick(self._blank.inputs, self._order)
        self._shapes = _list_shapes(Graph(self._inputs, self._blank.ops, ()))

    def read(self, graph: Graph) -> tuple[Value, ...] | None:
        """Returns what is in each hole of a graph; None if it has another skeleton, or another order of its values."""
        known, found = self._blank, list[Value]()
        if graph.outputs != known.outputs or graph.sizes != known.sizes or len(graph.inputs) != len(known.inputs):
            return None
        if len(graph.ops) != len(known.ops) or not _read_types(self._inputs, pick(graph.inputs, self._order), found):
            return None
        for expected, op in zip(known.ops, graph.ops, strict=True):
            if not _read_op(expected, op, found):
                return None
        return tuple(found)

    def count_elements(self, values: Sequence[Any]) -> int:
        """Returns how many elements the largest tensor of a graph has.

        Args:
            values: what is in its holes.
        """
        return max([known * prod([values[hole] for hole in holes]) for known, holes in self._shapes], default=0)


def pattern_of(instance: Instance) -> Pattern:
    """Returns the pattern of regions, which reads their holes as they come in the order of the template."""
    return Pattern(instance.region, inverse(instance.inputs))


def _read_types(known: Sequence[ValueType | None], types: Sequence[ValueType | None], found: list[Value]) -> bool:
    """Tells whether types are those of a pattern, and notes what is in their holes."""
    for expected, type_ in zip(known, types, strict=True):
        if not isinstance(expected, TensorType) or not isinstance(type_, TensorType):
            if expected != type_:
                return False
        elif not _read_tensor_type(expected, type_, found):
            return False
    return True


def _read_tensor_type(known: TensorType, type_: TensorType, found: list[Value]) -> bool:
    if known.dtype != type_.dtype or known.device != type_.device or len(known.shape) != len(type_.shape):
        return False
    for expected, size in zip(known.shape, type_.shape, strict=True):
        if expected != BLANK_SIZE:
            if size != expected:
                return False
        elif isinstance(size, int) and may_vary(size):
            found.append(size)
        else:
            return False
    return True


def _read_op(known: Op, op: Op, found: list[Value]) -> bool:
    if op.name != known.name or len(op.outputs) != len(known.outputs) or op.kwargs != known.kwargs:
        return False
    return _read_args(known.args, op.args, found) and _read_types(known.outputs, op.outputs, found)


def _read_args(known: Sequence[Arg], args: Sequence[Arg], found: list[Value]) -> bool:
    if len(args) != len(known):
        return False
    for expected, arg in zip(known, args, strict=True):
        if isinstance(expected, tuple):
            if not isinstance(arg, tuple) or not _read_args(expected, arg, found):
                return False
        elif isinstance(expected, Const) and expected.kind == BLANK_NUMBER.kind:
            value = _read_literal(expected, arg)
            if value is None:
                return False
            found.append(value)
        elif expected is not arg and expected != arg:
            return False
    return True


def _read_literal(hole: Const, arg: Arg) -> Value | None:
    """Returns what is in a hole among arguments; None if it is no hole with this there."""
    if not isinstance(arg, Const):
        return None
    if hole == BLANK_NUMBER:
        return arg if may_vary(arg) else None
    size = int(arg.text) if arg.kind == "int" else 0
    return size if may_vary(size) else None


class _Numbers(Filling):
    """Puts its number into each hole."""

    def __init__(self) -> None:
        self._numbers = count()

    def size(self, size: int) -> Ref:
        """See ``Filling``."""
        return Ref(next(self._numbers))

    def number(self, number: Const) -> Ref:
        """See ``Filling``."""
        return Ref(next(self._numbers))


def _list_shapes(blanked: Graph) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Returns of each shape the product of the sizes that are known, and which holes have the others."""
    numbered = fill_holes(blanked, _Numbers())
    types = [*numbered.inputs, *(type_ for op in numbered.ops for type_ in op.outputs)]
    shapes = dict.fromkeys(type_.shape for type_ in types if isinstance(type_, TensorType))
    return tuple([_split_shape(shape) for shape in shapes])


def _split_shape(shape: tuple[int | Ref, ...]) -> tuple[int, tuple[int, ...]]:
    known = [size for size in shape if isinstance(size, int)]
    return prod(known), tuple([size.index for size in shape if isinstance(size, Ref)])
