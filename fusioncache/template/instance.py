"""The way from a region and its binding to an instance of its template."""

from __future__ import annotations

from fusioncache.ir import Binding, Graph, Instance, Ref, Region, operands, refs_in
from fusioncache.ir.permutation import inverse
from fusioncache.template.simplify import remove_dead_ops
from fusioncache.template.writer import renumber


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
