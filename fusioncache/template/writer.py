"""Graphs written anew: op by op with a record of where values went, and without what is not used.

An instance is a region without the inputs that it does not use, and how its template calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from fusioncache.ir import (
    Binding,
    Graph,
    Instance,
    Op,
    Ref,
    Region,
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
