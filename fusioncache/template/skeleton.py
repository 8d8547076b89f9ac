"""Skeletons: canonical graphs with blank holes. Regions with equal skeletons may be generalized together.

A hole is a place in a graph where the next region may have another size or number. It holds a size of 2 or more, in the
type of an input or of a result or in an argument that is made of sizes, or a number that takes part in the arithmetic.
Nothing else is ever a hole, because a compiler does not treat it as a mere value or because a tensor that holds it does
not give the same bits: dimensions, dtypes and flags; sizes 0 and 1, because 0 means empty and 1 may be broadcast; the
numbers 0, 1, -1, inf and nan; complex numbers in the arithmetic, and integers in arithmetic with results of other
dtypes than int64; exponents, numerators, bounds and fill values. ``ir/ops.py`` lists which arguments of which
operation are made of sizes or may be numbers. Arguments of unknown operations contain no holes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache as remember
from functools import partial
from typing import NewType

from fusioncache.ir import Arg, Const, Graph, Op, Ref, TensorType, Value, ValueType
from fusioncache.ir.ops import Path, op_traits

BLANK_SIZE = -1
"""The content of a blank hole for a size. No tensor has such a size."""
BLANK_NUMBER = Const("hole", "number")
"""The content of a blank hole for a number."""

_LEAST_SIZE = 2
_BLANK_SIZE_LITERAL = Const("hole", "size")


Fill = Callable[[Value], Value | Ref]
"""Returns the new content of a hole, a size or a number. It is called for each hole of a graph, in order."""


def may_vary(value: Value) -> bool:
    """Returns whether a place that can be a hole is one when it contains this value."""
    if isinstance(value, int):
        return value >= _LEAST_SIZE
    if value.kind != "float":
        return False
    number = float.fromhex(value.text)
    return math.isfinite(number) and abs(number) not in (0.0, 1.0)


def fill_holes(graph: Graph, fill: Fill) -> Graph:
    """Returns a graph with new contents in its holes: first in those of the inputs, then in those of each op.

    Within an op, holes in arguments come before holes in results.
    """
    inputs = tuple(_fill_type(type_, fill) for type_ in graph.inputs)
    return replace(graph, inputs=inputs, ops=tuple(_fill_op(op, fill) for op in graph.ops))


def fill_in_order(graph: Graph, contents: Sequence[Value | Ref]) -> Graph:
    """Returns a graph with these contents in its holes, the first one in the first hole.

    Raises:
        ValueError: if there are more contents than holes, or fewer, or a size is given for a number or vice versa.
    """
    holes = read_holes(graph)
    if len(holes) != len(contents):
        raise ValueError(f"{len(contents)} values for {len(holes)} holes")
    for hole, content in zip(holes, contents, strict=True):
        if not isinstance(content, Ref) and type(hole) is not type(content):
            raise ValueError(f"{content} in a hole for a {'size' if isinstance(hole, int) else 'number'}")
    waiting = iter(contents)
    return fill_holes(graph, lambda value: next(waiting))


def take_holes(graph: Graph) -> tuple[Skeleton, tuple[Value, ...]]:
    """Returns the skeleton of a graph in canonical order, and the former content of each hole.

    Graphs that differ only in the contents of their holes have equal skeletons.
    """
    values: list[Value] = []

    def take(value: Value) -> Value:
        values.append(value)
        return _blank(value)

    return Skeleton(fill_holes(graph, take)), tuple(values)


def blank_type[T: ValueType | None](type_: T) -> T:
    """Returns a type with blank holes."""
    return _fill_type(type_, _blank)


def blank_args(op: Op) -> tuple[Arg, ...]:
    """Returns the arguments of an op with blank holes."""
    return _fill_args(op, _blank)


def read_holes(graph: Graph) -> tuple[Value, ...]:
    """Returns the content of each hole."""
    return take_holes(graph)[1]


def read_each(graph: Graph) -> list[tuple[float, ...]]:
    """Returns the contents of the holes of each input, symbolic size and op, as numbers, which can be sorted."""
    of_type = remember(lambda type_: _read_numbers(partial(_fill_type, type_)))
    found = [*map(of_type, graph.inputs), *[()] * graph.sizes]
    for op in graph.ops:
        found.append(sum(map(of_type, op.outputs), _read_numbers(partial(_fill_args, op))))
    return found


def _read_numbers(work: Callable[[Fill], object]) -> tuple[float, ...]:
    numbers: list[float] = []

    def note(value: Value) -> Value:
        numbers.append(value if isinstance(value, int) else float.fromhex(value.text))
        return value

    work(note)
    return tuple(numbers)


def _blank(value: Value) -> Value:
    return BLANK_SIZE if isinstance(value, int) else BLANK_NUMBER


def _fill_type[T: ValueType | None](type_: T, fill: Fill) -> T:
    if not isinstance(type_, TensorType):
        return type_
    shape = tuple([size if isinstance(size, Ref) else _fill_size(size, fill) for size in type_.shape])
    return replace(type_, shape=shape)


def _fill_size(size: int, fill: Fill) -> int | Ref:
    if size != BLANK_SIZE and not may_vary(size):
        return size
    filled = fill(size)
    assert not isinstance(filled, Const)
    return filled


def _fill_op(op: Op, fill: Fill) -> Op:
    args = _fill_args(op, fill)
    return Op(op.name, args, tuple(_fill_type(type_, fill) for type_ in op.outputs), op.kwargs)


def _fill_args(op: Op, fill: Fill) -> tuple[Arg, ...]:
    traits = op_traits(op.name)
    sizes = traits.size_arguments + (traits.integer_arguments if _is_exact(op) else ())
    if not sizes and not traits.scalar_arguments:
        return op.args
    return tuple(
        _fill_arg(arg, (position,), sizes, traits.scalar_arguments, fill) for position, arg in enumerate(op.args)
    )


def _is_exact(op: Op) -> bool:
    """True if the results of an op are tensors of int64."""
    return all(isinstance(type_, TensorType) and type_.dtype == "int64" for type_ in op.outputs)


def _fill_arg(arg: Arg, path: tuple[int, ...], sizes: tuple[Path, ...], scalars: tuple[Path, ...], fill: Fill) -> Arg:
    if isinstance(arg, tuple):
        return tuple(_fill_arg(item, (*path, position), sizes, scalars, fill) for position, item in enumerate(arg))
    if isinstance(arg, Ref):
        return arg
    if (arg.kind == "int" or arg == _BLANK_SIZE_LITERAL) and any(_leads_to(way, path) for way in sizes):
        return _fill_size_literal(arg, fill)
    if path in scalars:
        filled = fill(arg) if arg == BLANK_NUMBER or may_vary(arg) else arg
        assert not isinstance(filled, int)
        return filled
    return arg


def _fill_size_literal(literal: Const, fill: Fill) -> Const | Ref:
    if literal != _BLANK_SIZE_LITERAL and not may_vary(int(literal.text)):
        return literal
    size = _fill_size(BLANK_SIZE if literal == _BLANK_SIZE_LITERAL else int(literal.text), fill)
    if isinstance(size, Ref):
        return size
    return _BLANK_SIZE_LITERAL if size == BLANK_SIZE else Const("int", str(size))


def _leads_to(way: Path, path: tuple[int, ...]) -> bool:
    """True if a path is equal to a way or continues it."""
    return len(way) <= len(path) and all(step in (None, taken) for step, taken in zip(way, path, strict=False))


Skeleton = NewType("Skeleton", Graph)
"""A graph in canonical order with blank holes, where sizes and eligible numbers were. It is not a region.

Two regions have equal skeletons if they differ at most in the contents of holes. The canonical order ignores these
where it can, so that the n-th hole of one is at the place of the n-th hole of the other."""


def skeleton_of(graph: Graph) -> Skeleton:
    """Returns the skeleton of a graph in canonical order."""
    return take_holes(graph)[0]


def fill(skeleton: Skeleton, values: Sequence[Value]) -> Graph:
    """Returns the canonical graph with this skeleton and these values in its holes. ``read_holes`` is the inverse.

    Raises:
        ValueError: if there are more values than holes, or fewer, or one cannot be in its hole.
    """
    try:
        refused = [value for value in values if not may_vary(value)]
    except OverflowError as error:
        raise ValueError("a number that no hole holds") from error
    if refused:
        raise ValueError(f"{refused[0]} in a hole")
    return fill_in_order(skeleton, values)
