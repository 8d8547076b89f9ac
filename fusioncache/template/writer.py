"""Graphs written anew: op by op with a record of where values went, without what is not used, and in parts.

An instance is a region without the inputs that it does not use, and how its template calls it. A part is for a compiler
that rejects the whole graph, and may take each half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from fusioncache.ir import (
    Binding,
    Graph,
    Instance,
    Op,
    Ref,
    Region,
    TensorType,
    ValueType,
    map_arg,
    map_type,
    operands,
    refs_in,
)
from fusioncache.ir.graph import inverse
from fusioncache.ir.ops import op_traits


def rename_operands(op: Op, rename: Callable[[int], Ref]) -> Op:
    """Returns the op with each used value replaced by ``rename(index)``."""
    return Op(
        op.name,
        tuple(map_arg(arg, rename) for arg in op.args),
        tuple(map_type(type_, rename) for type_ in op.outputs),
        tuple((name, map_arg(arg, rename)) for name, arg in op.kwargs),
    )


def renumber(
    rename: Callable[[int], Ref], inputs: Iterable[ValueType], ops: Iterable[Op], outputs: Iterable[int], sizes: int = 0
) -> Graph:
    """Returns a graph of these parts of another one, with each value replaced by ``rename(index)``."""
    types = tuple(map_type(type_, rename) for type_ in inputs)
    moved = tuple(rename_operands(op, rename) for op in ops)
    return Graph(types, moved, tuple(rename(value).index for value in outputs), sizes)


class GraphWriter:
    """Writes a graph that starts with an old graph's inputs and, behind these, added ones.

    Attributes:
        types: the type of each value written so far; None for a symbolic size.
    """

    def __init__(self, old: Graph, added: tuple[ValueType, ...] = ()):
        before = len(old.inputs)
        self._renamed = {
            value: Ref(value if value < before else value + len(added)) for value in range(old.first_result)
        }
        self._sizes = old.sizes
        self._inputs = tuple(map_type(type_, self.new) for type_ in (*old.inputs, *added))
        self._ops: list[Op] = []
        self.types: list[ValueType | None] = [*self._inputs, *[None] * old.sizes]

    def new(self, old: int) -> Ref:
        """Returns where a value of the old graph is now."""
        return self._renamed[old]

    def rename(self, op: Op) -> Op:
        """Returns an op of the old graph on the values of the new one."""
        return rename_operands(op, self.new)

    def append(self, op: Op) -> int:
        """Writes an op on values of the new graph; returns the number of its first result."""
        first = len(self.types)
        self._ops.append(op)
        self.types.extend(op.outputs)
        return first

    def move(self, old: int, new: int, results: int = 1) -> None:
        """Notes that values of the old graph, from this one on, are these of the new one."""
        self._renamed.update({old + index: Ref(new + index) for index in range(results)})

    def copy(self, op: Op, first: int) -> None:
        """Writes an op of the old graph whose first result had this number."""
        self.move(first, self.append(self.rename(op)), len(op.outputs))

    def graph(self, outputs: Iterable[int]) -> Graph:
        """Returns what was written. ``outputs`` are values of the old graph."""
        return Graph(self._inputs, tuple(self._ops), tuple(self.new(value).index for value in outputs), self._sizes)


def remove_dead_ops(graph: Graph) -> Graph:
    """Returns the same function with nothing that is not used. Inputs and outputs keep their order."""
    live = set(graph.outputs)
    for op, first in reversed(list(graph.results())):
        if op_traits(op.name).writes or not live.isdisjoint(range(first, first + len(op.outputs))):
            live.update(index for _, index in operands(op))
    if live.issuperset(range(graph.first_result, graph.first_result + sum(len(op.outputs) for op in graph.ops))):
        return graph
    writer = GraphWriter(graph)
    for op, first in graph.results():
        kept = [op_traits(op.name).writes or first + index in live for index in range(len(op.outputs))]
        if any(kept):
            outputs = tuple(type_ if keep else None for type_, keep in zip(op.outputs, kept, strict=True))
            writer.copy(replace(op, outputs=outputs), first)
    return writer.graph(graph.outputs)


def instance_of(region: Region, binding: Binding, plain: Region | None = None) -> Instance:
    """Returns the region that a binding leads from, as Thunder wrote it, without the inputs that it does not use.

    Args:
        region: as it was read.
        binding: leads from it to its template.
        plain: the same region as plain Thunder lays out its values, if it does so otherwise.
    """
    if len(set(binding.arguments)) < len(region.inputs):
        inputs = sorted(binding.arguments)
        region = _with_inputs(remove_dead_ops(region), inputs)
        plain = plain and _with_known_inputs(plain, inputs)
    return Instance(region, inverse(binding.arguments), inverse(binding.outputs), plain)


def _with_known_inputs(plain: Graph, inputs: list[int]) -> Graph | None:
    """Does as ``_with_inputs``; returns None if the graph needs others."""
    needed = {index for op in plain.ops for _, index in operands(op)}.union(plain.outputs)
    known = needed.intersection(range(len(plain.inputs))) <= set(inputs)
    return _with_inputs(plain, inputs) if known else None


def _with_inputs(graph: Graph, inputs: list[int]) -> Graph:
    """Returns the graph with these inputs only, and the symbolic sizes that they carry."""
    sizes = sorted({size for value in inputs for _, size in refs_in(graph.inputs[value])})
    number = {old: new for new, old in enumerate([*inputs, *sizes])}
    dropped = graph.first_result - len(number)

    def new(index: int) -> Ref:
        return Ref(number[index] if index < graph.first_result else index - dropped)

    return renumber(new, [graph.inputs[value] for value in inputs], graph.ops, graph.outputs, len(sizes))


_MIDDLE = 0.25
"""A cut leaves at least this part of the operations on either side."""


@dataclass(frozen=True, slots=True)
class GraphPart:
    """Some operations of a graph, as a graph of their own.

    Attributes:
        graph: the operations.
        inputs: for each of its inputs, the number of the value in the whole.
        outputs: for each of its outputs, the number of the value in the whole.
    """

    graph: Graph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def cut(graph: Graph) -> int | None:
    """Returns after how many operations a graph is cut in two; None if it has fewer than two, or symbolic sizes.

    Of the places around the middle it is the one over which the fewest bytes pass. Linear in the operations.
    """
    count = len(graph.ops)
    if count < 2 or graph.sizes:
        return None
    passing = _count_passing_bytes(graph)
    least, most = max(1, int(count * _MIDDLE)), min(count - 1, int(count * (1 - _MIDDLE)))
    return min(range(least, max(least, most) + 1), key=lambda place: (passing[place], abs(2 * place - count)))


def take(graph: Graph, start: int, stop: int) -> GraphPart:
    """Returns the operations of a graph from one place to another.

    Its inputs are what these operations use of the graph's inputs and of earlier results, in order of their numbers.
    Its outputs are what later operations use of their results, or the graph returns.

    Args:
        graph: without symbolic sizes.
        start: the first operation.
        stop: the first one behind.
    """
    firsts = [first for _, first in graph.results()]
    ops = graph.ops[start:stop]
    own = {first + place for op, first in zip(ops, firsts[start:stop], strict=True) for place in range(len(op.outputs))}
    used = sorted({index for op in ops for _, index in operands(op)} - own)
    wanted = sorted(own & ({index for op in graph.ops[stop:] for _, index in operands(op)} | set(graph.outputs)))
    numbers = {number: place for place, number in enumerate([*used, *sorted(own)])}

    types = _list_types(graph)
    inputs = [type_ for number in used if (type_ := types[number]) is not None]
    part = renumber(lambda number: Ref(numbers[number]), inputs, ops, wanted)
    return GraphPart(part, tuple(used), tuple(wanted))


def _list_types(graph: Graph) -> Sequence[ValueType | None]:
    return [*graph.inputs, *(type_ for op in graph.ops for type_ in op.outputs)]


def _count_passing_bytes(graph: Graph) -> list[int]:
    """Returns for each place the bytes of the results before it that are used behind it."""
    last = {index: place for place, op in enumerate(graph.ops) for _, index in operands(op)}
    changes = [0] * (len(graph.ops) + 1)
    for place, (op, first) in enumerate(graph.results()):
        for number, type_ in enumerate(op.outputs, first):
            if number in last and isinstance(type_, TensorType):
                changes[place + 1] += type_.bytes
                changes[last[number] + 1] -= type_.bytes
    return list(accumulate(changes))
