"""Rewriting of graphs: op by op with renumbered values, without dead code, and in parts.

An instance is a region without the inputs that it does not use, and how its template calls it. A part is for a compiler
that rejects the whole graph, and may accept each half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    """Returns a graph made of these parts of another one, with each value replaced by ``rename(index)``."""
    types = tuple(map_type(type_, rename) for type_ in inputs)
    moved = tuple(rename_operands(op, rename) for op in ops)
    return Graph(types, moved, tuple(rename(value).index for value in outputs), sizes)


class GraphWriter:
    """Writes a graph that starts with an old graph's inputs, followed by added ones.

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
        """Returns the value of the new graph that replaces a value of the old graph."""
        return self._renamed[old]

    def rename(self, op: Op) -> Op:
        """Returns an op of the old graph with its operands replaced by values of the new graph."""
        return rename_operands(op, self.new)

    def append(self, op: Op) -> int:
        """Writes an op on values of the new graph. Returns the number of its first result."""
        first = len(self.types)
        self._ops.append(op)
        self.types.extend(op.outputs)
        return first

    def move(self, old: int, new: int, results: int = 1) -> None:
        """Records that consecutive values of the old graph, from ``old`` on, are those from ``new`` on."""
        self._renamed.update({old + index: Ref(new + index) for index in range(results)})

    def copy(self, op: Op, first: int) -> None:
        """Writes an op of the old graph, whose first result had the number ``first`` there."""
        self.move(first, self.append(self.rename(op)), len(op.outputs))

    def graph(self, outputs: Iterable[int]) -> Graph:
        """Returns the new graph. ``outputs`` are values of the old graph."""
        return Graph(self._inputs, tuple(self._ops), tuple(self.new(value).index for value in outputs), self._sizes)


def remove_dead_ops(graph: Graph) -> Graph:
    """Returns the same function without dead code. Inputs and outputs keep their order."""
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
    """Returns the region of a binding as an instance: as Thunder wrote it, without the inputs that it does not use.

    Args:
        region: as it was read.
        binding: of the region to its template.
        plain: the same region with the layouts of plain Thunder, if these differ.
    """
    if len(set(binding.arguments)) < len(region.inputs):
        inputs = sorted(binding.arguments)
        region = _with_inputs(remove_dead_ops(region), inputs)
        plain = plain and _with_known_inputs(plain, inputs)
    return Instance(region, inverse(binding.arguments), inverse(binding.outputs), plain)


def _with_known_inputs(plain: Graph, inputs: list[int]) -> Graph | None:
    """Returns the graph with these inputs only; None if it needs others."""
    needed = {index for op in plain.ops for _, index in operands(op)}.union(plain.outputs)
    known = needed.intersection(range(len(plain.inputs))) <= set(inputs)
    return _with_inputs(plain, inputs) if known else None


def _with_inputs(graph: Graph, inputs: list[int]) -> Graph:
    """Returns the graph with these inputs only, and the symbolic sizes in their shapes."""
    sizes = sorted({size for value in inputs for _, size in refs_in(graph.inputs[value])})
    number = {old: new for new, old in enumerate([*inputs, *sizes])}
    dropped = graph.first_result - len(number)

    def new(index: int) -> Ref:
        return Ref(number[index] if index < graph.first_result else index - dropped)

    return renumber(new, [graph.inputs[value] for value in inputs], graph.ops, graph.outputs, len(sizes))


_MIDDLE = 0.25
"""The least share of the operations on either side of a cut."""


@dataclass(frozen=True, slots=True)
class GraphPart:
    """Some operations of a graph, as a separate graph.

    Attributes:
        graph: the operations.
        inputs: for each of its inputs, the number of the value in the whole graph.
        outputs: for each of its outputs, the number of the value in the whole graph.
    """

    graph: Graph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def cut(graph: Graph) -> int | None:
    """Returns after how many operations to cut a graph in two; None if it has fewer than two, or symbolic sizes.

    Of the places around the middle, the one that the fewest bytes cross is chosen. Linear in the operations.
    """
    count = len(graph.ops)
    if count < 2 or graph.sizes:
        return None
    passing = _count_passing_bytes(graph)
    least, most = max(1, int(count * _MIDDLE)), min(count - 1, int(count * (1 - _MIDDLE)))
    return min(range(least, max(least, most) + 1), key=lambda place: (passing[place], abs(2 * place - count)))


def take(graph: Graph, start: int, stop: int) -> GraphPart:
    """Returns a range of a graph's operations as a part.

    Its inputs are the graph's inputs and earlier results that these operations use, in order of their numbers. Its
    outputs are those of their results that later operations use or the graph returns.

    Args:
        graph: without symbolic sizes.
        start: the first operation.
        stop: the first operation behind the part.
    """
    firsts = [first for _, first in graph.results()]
    ops = graph.ops[start:stop]
    own = {first + place for op, first in zip(ops, firsts[start:stop], strict=True) for place in range(len(op.outputs))}
    used = sorted({index for op in ops for _, index in operands(op)} - own)
    wanted = sorted(own & ({index for op in graph.ops[stop:] for _, index in operands(op)} | set(graph.outputs)))
    numbers = {number: place for place, number in enumerate([*used, *sorted(own)])}

    types = graph.types
    inputs = [type_ for number in used if (type_ := types[number]) is not None]
    part = renumber(lambda number: Ref(numbers[number]), inputs, ops, wanted)
    return GraphPart(part, tuple(used), tuple(wanted))


def _count_passing_bytes(graph: Graph) -> list[int]:
    """Returns for each place the bytes of earlier results that later operations use."""
    last = {index: place for place, op in enumerate(graph.ops) for _, index in operands(op)}
    changes = [0] * (len(graph.ops) + 1)
    for place, (op, first) in enumerate(graph.results()):
        for number, type_ in enumerate(op.outputs, first):
            if number in last and isinstance(type_, TensorType):
                changes[place + 1] += type_.bytes
                changes[last[number] + 1] -= type_.bytes
    return list(accumulate(changes))
