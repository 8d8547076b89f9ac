"""Holes: the places of a graph where a size or a number stands that may be another one in the next region.

A hole holds a size of 2 or more, in the type of an input or of a result or in an argument that is made of sizes, or a
number that takes part in the arithmetic. Nothing else is ever a hole, because a compiler takes it for more than a value
or because a tensor that holds it does not give the same bits: dimensions, dtypes and flags; sizes 0 and 1, of which one
is empty and the other may be broadcast; the numbers 0, 1, -1, inf and nan; integers and complex numbers in the
arithmetic; exponents, numerators, bounds, and what is filled in. ``ir/ops.py`` says which arguments of which operation
are made of sizes or may be numbers. Of an operation that it does not know none is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache as remember

from fusioncache.ir import Arg, Const, Graph, Op, Ref, TensorType, Value, ValueType
from fusioncache.ir.ops import OpTraits, Path, op_traits

BLANK_SIZE = -1
"""What is in a hole for a size that holds none. No tensor has such a size."""
BLANK_NUMBER = Const("hole", "number")
"""What is in a hole for a number that holds none."""

_LEAST_SIZE = 2
_BLANK_SIZE_LITERAL = Const("hole", "size")


class Filling:
    """Says what comes into a hole; asked for each hole of a graph, in order. This one leaves what is there."""

    def size(self, size: int) -> int | Ref:
        """Returns what comes into a hole that holds a size."""
        return size

    def number(self, number: Const) -> Const | Ref:
        """Returns what comes into a hole that holds a number."""
        return number


def may_vary(value: Value) -> bool:
    """Returns whether a place where holes may be is one when this stands there."""
    if isinstance(value, int):
        return value >= _LEAST_SIZE
    if value.kind != "float":
        return False
    number = float.fromhex(value.text)
    return math.isfinite(number) and abs(number) not in (0.0, 1.0)


def fill_holes(graph: Graph, filling: Filling) -> Graph:
    """Returns a graph with something else in its holes: those of the inputs, then those of each op.

    Of an op, those of its arguments come first, then those of its results.
    """
    inputs = tuple(_fill_type(type_, filling) for type_ in graph.inputs)
    return replace(graph, inputs=inputs, ops=tuple(_fill_op(op, filling) for op in graph.ops))


def fill_in_order(graph: Graph, contents: Sequence[Value | Ref]) -> Graph:
    """Returns a graph with these in its holes, the first one in the first hole.

    Raises:
        ValueError: if there are more of these or of the holes, or a size and a number stand for one another.
    """
    holes = read_holes(graph)
    if len(holes) != len(contents):
        raise ValueError(f"{len(contents)} values for {len(holes)} holes")
    for hole, content in zip(holes, contents, strict=True):
        if not isinstance(content, Ref) and type(hole) is not type(content):
            raise ValueError(f"{content} in a hole for a {'size' if isinstance(hole, int) else 'number'}")
    return fill_holes(graph, _Contents(contents))


def blank(graph: Graph) -> Graph:
    """Returns a graph with nothing in its holes. Graphs that differ only in what is in their holes become equal."""
    return fill_holes(graph, _Blanks())


def blank_type[T: ValueType | None](type_: T) -> T:
    """Returns a type with nothing in its holes."""
    return _fill_type(type_, _Blanks())


def blank_args(op: Op) -> tuple[Arg, ...]:
    """Returns the arguments of an op with nothing in their holes."""
    return _fill_args(op, _Blanks())


def read_holes(graph: Graph) -> tuple[Value, ...]:
    """Returns what is in each hole."""
    reading = _Reading()
    fill_holes(graph, reading)
    return tuple(reading.values)


def count_input_holes(graph: Graph) -> int:
    """Returns how many holes are in the shapes of inputs. They come first."""
    return len(read_holes(replace(graph, ops=(), outputs=())))


def read_each(graph: Graph) -> list[tuple[float, ...]]:
    """Returns what is in the holes of each input, each symbolic size and each op, as numbers, which have an order."""
    of_type = remember(_read_type)
    found = [*map(of_type, graph.inputs), *[()] * graph.sizes]
    for op in graph.ops:
        found.append(sum(map(of_type, op.outputs), _read_args(op)))
    return found


def _read_type(type_: ValueType | None) -> tuple[float, ...]:
    reading = _Reading()
    _fill_type(type_, reading)
    return reading.numbers()


def _read_args(op: Op) -> tuple[float, ...]:
    reading = _Reading()
    _fill_args(op, reading)
    return reading.numbers()


class _Blanks(Filling):
    def size(self, size: int) -> int:
        return BLANK_SIZE

    def number(self, number: Const) -> Const:
        return BLANK_NUMBER


class _Contents(Filling):
    def __init__(self, contents: Sequence[Value | Ref]):
        self._waiting = iter(contents)

    def size(self, size: int) -> int | Ref:
        content = next(self._waiting)
        assert not isinstance(content, Const)
        return content

    def number(self, number: Const) -> Const | Ref:
        content = next(self._waiting)
        assert not isinstance(content, int)
        return content


class _Reading(Filling):
    def __init__(self) -> None:
        self.values: list[Value] = []

    def size(self, size: int) -> int:
        self.values.append(size)
        return size

    def number(self, number: Const) -> Const:
        self.values.append(number)
        return number

    def numbers(self) -> tuple[float, ...]:
        """Returns what was read, as numbers."""
        return tuple([value if isinstance(value, int) else float.fromhex(value.text) for value in self.values])


def _fill_type[T: ValueType | None](type_: T, filling: Filling) -> T:
    if not isinstance(type_, TensorType):
        return type_
    shape = tuple(size if isinstance(size, Ref) else _fill_size(size, filling) for size in type_.shape)
    return replace(type_, shape=shape)


def _fill_size(size: int, filling: Filling) -> int | Ref:
    return filling.size(size) if size == BLANK_SIZE or may_vary(size) else size


def _fill_op(op: Op, filling: Filling) -> Op:
    args = _fill_args(op, filling)
    return Op(op.name, args, tuple(_fill_type(type_, filling) for type_ in op.outputs), op.kwargs)


def _fill_args(op: Op, filling: Filling) -> tuple[Arg, ...]:
    traits = op_traits(op.name)
    if not traits.size_arguments and not traits.scalar_arguments:
        return op.args
    return tuple(_fill_arg(arg, (position,), traits, filling) for position, arg in enumerate(op.args))


def _fill_arg(arg: Arg, path: tuple[int, ...], traits: OpTraits, filling: Filling) -> Arg:
    if isinstance(arg, tuple):
        return tuple(_fill_arg(item, (*path, position), traits, filling) for position, item in enumerate(arg))
    if isinstance(arg, Ref):
        return arg
    if path in traits.scalar_arguments:
        return filling.number(arg) if arg == BLANK_NUMBER or may_vary(arg) else arg
    if arg.kind in ("int", "hole") and any(_leads_to(way, path) for way in traits.size_arguments):
        return _fill_size_literal(arg, filling)
    return arg


def _fill_size_literal(literal: Const, filling: Filling) -> Const | Ref:
    size = BLANK_SIZE if literal == _BLANK_SIZE_LITERAL else int(literal.text)
    if literal.kind == "int" and not may_vary(size):
        return literal
    filled = filling.size(size)
    if isinstance(filled, Ref):
        return filled
    return _BLANK_SIZE_LITERAL if filled == BLANK_SIZE else Const("int", str(filled))


def _leads_to(way: Path, path: tuple[int, ...]) -> bool:
    """Whether a path is a way or goes on from where it leads."""
    return len(way) <= len(path) and all(step in (None, taken) for step, taken in zip(way, path, strict=False))
