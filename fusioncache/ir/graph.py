"""A region as data: typed inputs, ops in dependency order, outputs; and orders of values.

An order is a sequence of positions: for each new index, the old position of its value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import itemgetter


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of the value with this number."""

    index: int


@dataclass(frozen=True, slots=True)
class TensorType:
    """The static type of a tensor.

    Attributes:
        dtype: Thunder's full dtype name, such as ``bfloat16``; weak dtypes end in ``_``.
        shape: one entry per dimension: its size, or a ``Ref`` to a symbolic size.
        device: the device's type, such as ``cuda``; the index is not part of a type.
    """

    dtype: str
    shape: tuple[int | Ref, ...]
    device: str

    @property
    def bytes(self) -> int:
        """The bytes of a dense tensor; a symbolic size counts as 1."""
        bits = re.search(r"\d+", self.dtype)
        item = max(1, int(bits.group()) // 8) if bits else 1
        return item * self.elements

    @property
    def elements(self) -> int:
        """The number of elements; a symbolic size counts as 1."""
        return prod(size for size in self.shape if isinstance(size, int))

    def __str__(self) -> str:
        sizes = ", ".join(f"%{size.index}" if isinstance(size, Ref) else str(size) for size in self.shape)
        return f"{self.dtype}[{sizes}] {self.device}"


@dataclass(frozen=True, slots=True)
class NumberType:
    """A number known only at run time: ``int``, ``float``, ``bool`` or ``complex``."""

    python_type: str

    def __str__(self) -> str:
        return self.python_type


ValueType = TensorType | NumberType


@dataclass(frozen=True, slots=True)
class Const:
    """A literal with its type, so that ``1``, ``1.0`` and ``True`` differ.

    Attributes:
        kind: ``int``, ``float``, ``bool``, ``complex``, ``str``, ``none``, ``dtype``, ``torch.dtype``, ``type`` or
            ``device``.
        text: the exact value; floats in hexadecimal, so that ``-0.0`` and every last bit survive.
    """

    kind: str
    text: str

    def __str__(self) -> str:
        if self.kind == "none":
            return "None"
        if self.kind == "float":
            return repr(float.fromhex(self.text))
        if self.kind in ("int", "bool", "complex"):
            return self.text
        return repr(self.text) if self.kind == "str" else f"{self.kind}:{self.text}"


type Arg = Ref | Const | tuple[Arg, ...]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation.

    Attributes:
        name: which operation, such as ``prims.add``.
        args: positional arguments in the order of the operation's signature.
        kwargs: keyword arguments, sorted by name.
        outputs: the type of each result; None for a result that was dropped because it is not used.
    """

    name: str
    args: tuple[Arg, ...]
    outputs: tuple[ValueType | None, ...]
    kwargs: tuple[tuple[str, Arg], ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """A directed acyclic graph of ops.

    Values are numbered: first the inputs, then the symbolic sizes, then the results of the ops, op by op.

    Attributes:
        inputs: the type of each input.
        ops: in dependency order.
        outputs: the number of each output's value.
        sizes: how many symbolic sizes there are; each occurs in the shape of some input.
    """

    inputs: tuple[ValueType, ...]
    ops: tuple[Op, ...]
    outputs: tuple[int, ...]
    sizes: int = 0

    def validate(self) -> None:
        """Checks that each value is defined before it is used, as in every graph that was made from a trace.

        Raises:
            ValueError: if one is not.
        """
        known = self.first_result
        for op, first in self.results():
            known = first + len(op.outputs)
            early = all(index < first for _, index in argument_refs(op))
            if not early or not all(index < known for _, index in operands(op)):
                raise ValueError(f"{op.name} uses what is not computed yet")
        sizes = [index for type_ in self.inputs for _, index in refs_in(type_)]
        if not all(index < self.first_result for index in sizes):
            raise ValueError("an input with a size that is computed later")
        if not all(index < known for index in self.outputs):
            raise ValueError("an output that nothing computes")

    @property
    def first_result(self) -> int:
        """The number of the first op's first result."""
        return len(self.inputs) + self.sizes

    @property
    def types(self) -> Sequence[ValueType | None]:
        """The type of each value; None for a symbolic size, and for a result that was dropped."""
        return [*self.inputs, *[None] * self.sizes, *(type_ for op in self.ops for type_ in op.outputs)]

    def results(self) -> Iterator[tuple[Op, int]]:
        """Yields each op with the number of its first result."""
        number = self.first_result
        for op in self.ops:
            yield op, number
            number += len(op.outputs)


Region = Graph
"""A graph as it was found in a trace: inputs and outputs in the order of the fused call."""


Value = int | Const
"""The value of a variable in a region: a size, or the literal of a number."""


@dataclass(frozen=True, slots=True)
class GeneralRegion:
    """A graph with variables, and the regions that it was made from.

    Attributes:
        graph: a variable that is a size of an input is a symbolic size. The others are number inputs behind the inputs
            of the regions.
        places: for each variable, the input and the dimension where it is found; None for a number.
        regions: some of its instances. No two variables have equal values in all of them.
        values: for each of these regions, the value of each variable.
    """

    graph: Graph
    places: tuple[tuple[int, int] | None, ...]
    regions: tuple[Graph, ...]
    values: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class GeneralInstance:
    """A region as an instance of a general one.

    Attributes:
        general: the general region.
        values: of its variables.
    """

    general: GeneralRegion
    values: tuple[Value, ...]


def map_arg(arg: Arg, rename: Callable[[int], Ref]) -> Arg:
    """Returns the argument with each ``Ref`` replaced by ``rename(index)``."""
    if isinstance(arg, Ref):
        return rename(arg.index)
    if isinstance(arg, tuple):
        return tuple(map_arg(item, rename) for item in arg)
    return arg


def map_type[T: ValueType | None](type_: T, rename: Callable[[int], Ref]) -> T:
    """Returns the type with each symbolic size replaced by ``rename(index)``."""
    if not isinstance(type_, TensorType) or Ref not in map(type, type_.shape):
        return type_
    shape = tuple(rename(size.index) if isinstance(size, Ref) else size for size in type_.shape)
    return replace(type_, shape=shape)


def refs_in(arg: Arg | ValueType | None, path: str = "") -> Iterator[tuple[str, int]]:
    """Yields the path, such as ``0.2``, and the number of each value that is used in an argument or a type."""
    if isinstance(arg, Ref):
        yield path, arg.index
    elif isinstance(arg, tuple):
        for position, item in enumerate(arg):
            yield from refs_in(item, f"{path}.{position}")
    elif isinstance(arg, TensorType):
        for dimension, size in enumerate(arg.shape):
            if isinstance(size, Ref):
                yield f"{path}.{dimension}", size.index


def argument_refs(op: Op) -> Iterator[tuple[str, int]]:
    """Yields the path and the number of each value among an op's arguments."""
    for position, arg in enumerate(op.args):
        yield from refs_in(arg, str(position))
    for name, arg in op.kwargs:
        yield from refs_in(arg, name)


def literals_of(graph: Graph) -> Iterator[Const]:
    """Yields the literals among the arguments of a graph's ops."""
    for op in graph.ops:
        yield from _consts_in((*op.args, *(arg for _, arg in op.kwargs)))


def _consts_in(arg: Arg) -> Iterator[Const]:
    if isinstance(arg, Const):
        yield arg
    elif isinstance(arg, tuple):
        for item in arg:
            yield from _consts_in(item)


def operands(op: Op) -> Iterator[tuple[str, int]]:
    """Yields the path and the number of each value that an op uses, in its arguments and in its results' shapes."""
    yield from argument_refs(op)
    for position, type_ in enumerate(op.outputs):
        yield from refs_in(type_, f"type{position}")


def pick[T](values: Sequence[T], positions: Sequence[int]) -> tuple[T, ...]:
    """Returns the values at these positions, in this order."""
    return tuple([values[position] for position in positions])


def picker[T](positions: Sequence[int], count: int) -> Callable[[Sequence[T]], Sequence[T]] | None:
    """Returns a fast function that picks from ``count`` values; None if it would return them unchanged."""
    if tuple(positions) == tuple(range(count)):
        return None
    if not positions:
        return lambda values: ()
    if len(positions) == 1:
        (position,) = positions
        return lambda values: (values[position],)
    return itemgetter(*positions)


def inverse(positions: Sequence[int]) -> tuple[int, ...]:
    """Returns the first new index of each old position that was picked, in ascending order of the old positions."""
    first = {position: index for index, position in reversed(list(enumerate(positions)))}
    return tuple([first[position] for position in sorted(first)])
