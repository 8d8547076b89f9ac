"""The removal of identities, duplicate ops and dead ops."""

from __future__ import annotations

from dataclasses import replace

from fusioncache.ir import Arg, Declined, Graph, Op, Ref, Scope, operands, refs_in
from fusioncache.ir.ops import ADD, COPY, MUL, op_traits
from fusioncache.template.writer import GraphWriter, rename_operands


def simplify(graph: Graph) -> Graph:
    """Returns the same function without identities, with each value computed once, and nothing that is not used.

    Inputs and outputs keep their order.

    The result is bitwise the same: no op is replaced by another, and none is computed from other operands. Results that
    were one tensor still are, those that were two still are, and so it is with their memory.

    Raises:
        Declined: if a view of what was written in place leaves.
    """
    return remove_dead_ops(_merge_duplicates(_remove_identities(graph)))


def _remove_identities(graph: Graph) -> Graph:
    """Forwards the operand of each identity, but for an input that becomes an output unchanged: that is a copy.

    An op that uses the result of a write in place uses the value that was written instead.
    """
    if not any(op.name == COPY or op_traits(op.name).identity for op in graph.ops):
        return graph
    outputs, leaving = set(graph.outputs), _leaving(graph)
    written: dict[int, int] = {}
    writer = GraphWriter(graph)
    for op, first in graph.results():
        traits = op_traits(op.name)
        source = op.args[0] if traits.identity or op.name == COPY else None
        if isinstance(source, Ref) and (op.name == COPY or source.index in written):
            written[first] = written.get(source.index, source.index)
        if not traits.identity:
            used = op
            op = rename_operands(op, lambda index: Ref(written.get(index, index)))
            if op != used and not traits.allocates and first in leaving:
                raise Declined("a view of a value written in place", Scope.REGION)
        operand = _forward(writer.rename(op))
        if operand is None or (operand < graph.first_result and first in outputs):
            writer.copy(op, first)
        else:
            writer.move(first, operand)
    return writer.graph(graph.outputs)


def _forward(op: Op) -> int | None:
    match op.args:
        case (Ref(operand),) if op_traits(op.name).identity:
            return operand
    return None


def objects_of(plain: Graph) -> list[int]:
    """Returns for each output of a region the value whose tensor it is, where operations may return their operand."""
    objects = list(range(plain.first_result))
    for op, first in plain.results():
        source = op.args[0] if op_traits(op.name).identity else None
        values = range(first, first + len(op.outputs))
        objects += [objects[source.index]] if isinstance(source, Ref) else values
    return [objects[output] for output in plain.outputs]


def _merge_duplicates(graph: Graph) -> Graph:
    """Computes each value once, except values whose memory outputs may share: two tensors stay two."""
    leaving = _leaving(graph)
    seen: dict[Op, int] = {}
    commuting = Commuting(graph.first_result)
    writer = GraphWriter(graph)
    for op, first in graph.results():
        op = writer.rename(op)
        signature = commuting.sort_operands(op)
        stays = op_traits(op.name).never_merged or not leaving.isdisjoint(range(first, first + len(op.outputs)))
        known = None if stays else seen.get(signature)
        if known is None:
            known = writer.append(op)
            commuting.define(op)
            if not stays:
                seen[signature] = known
        writer.move(first, known, len(op.outputs))
    return writer.graph(graph.outputs)


def _leaving(graph: Graph) -> set[int]:
    """Returns the outputs, and the values that outputs may be views of."""
    leaving = set(graph.outputs)
    for op, first in reversed(list(graph.results())):
        if not op_traits(op.name).allocates and not leaving.isdisjoint(range(first, first + len(op.outputs))):
            leaving.update(index for _, index in operands(op))
    return leaving


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


class Commuting:
    """Knows of each op of a graph, defined in order, whether its operands may be exchanged without changing bits."""

    def __init__(self, inputs: int):
        self._product = [False] * inputs

    def define(self, op: Op) -> None:
        """Takes in the next op of the graph."""
        operand = any(self._product[index] for arg in op.args for _, index in refs_in(arg))
        self._product.extend([op_traits(op.name).may_be_product(operand)] * len(op.outputs))

    def commutes(self, op: Op) -> bool:
        """Returns whether the operands of the next op may be exchanged."""
        if not op_traits(op.name).commutes or len(op.args) != 2 or op.kwargs or _is_complex_product(op):
            return False
        both_products = all(isinstance(arg, Ref) and self._product[arg.index] for arg in op.args)
        return not (op.name == ADD and both_products)

    def sort_operands(self, op: Op) -> Op:
        """Returns the op with commuting operands sorted: values by number, then constants."""
        if not self.commutes(op):
            return op
        return Op(op.name, tuple(sorted(op.args, key=_rank)), op.outputs, op.kwargs)


def _is_complex_product(op: Op) -> bool:
    """Whether each part of the result is a sum of two products, of which a compiler contracts one and rounds one."""
    return op.name == MUL and any(str(type_).startswith("complex") for type_ in op.outputs)


def _rank(arg: Arg) -> tuple:
    return (0, arg.index, "") if isinstance(arg, Ref) else (1, 0, repr(arg))
