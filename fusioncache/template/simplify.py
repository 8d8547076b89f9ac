"""Simplification: removes identities, duplicate ops and dead ops. Each residual chain becomes one parametrized op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusioncache.ir import Arg, Const, Declined, Graph, Op, Ref, Scope, TensorType, operands, refs_in
from fusioncache.ir.ops import ADD, CONVERT, COPY, MUL, RESIDUAL, op_traits
from fusioncache.template.writer import GraphWriter, remove_dead_ops, rename_operands


def simplify(graph: Graph) -> Graph:
    """Returns the same function without identities, duplicate operations and dead code.

    Inputs and outputs keep their order.

    The result is bitwise the same: no op is replaced by another, and none is computed from other operands. It does not
    change which results are the same tensor, nor which ones share memory.

    Raises:
        Declined: if an output may be a view of a value that was written in place.
    """
    return remove_dead_ops(_merge_duplicates(_remove_identities(graph)))


def _remove_identities(graph: Graph) -> Graph:
    """Forwards the operand of each identity, unless that would make an input an output: such an identity is a copy.

    An op that uses the result of an in-place write uses the written value instead.
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
        operand = writer.new(source.index).index if traits.identity and isinstance(source, Ref) else None
        if operand is None or (operand < graph.first_result and first in outputs):
            writer.copy(op, first)
        else:
            writer.move(first, operand)
    return writer.graph(graph.outputs)


def objects_of(plain: Graph) -> list[int]:
    """Returns for each output of a region the value whose tensor object it is: an identity may return its operand."""
    objects = list(range(plain.first_result))
    for op, first in plain.results():
        source = op.args[0] if op_traits(op.name).identity else None
        values = range(first, first + len(op.outputs))
        objects += [objects[source.index]] if isinstance(source, Ref) else values
    return [objects[output] for output in plain.outputs]


def _merge_duplicates(graph: Graph) -> Graph:
    """Eliminates common subexpressions, except values whose memory outputs may share: two tensors stay two."""
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
    """Returns the outputs, and the values of which outputs may be views."""
    leaving = set(graph.outputs)
    for op, first in reversed(list(graph.results())):
        if not op_traits(op.name).allocates and not leaving.isdisjoint(range(first, first + len(op.outputs))):
            leaving.update(index for _, index in operands(op))
    return leaving


class Commuting:
    """Decides for each op of a graph, defined in order, whether its operands may be exchanged without changing bits."""

    def __init__(self, inputs: int):
        self._product = [False] * inputs

    def define(self, op: Op) -> None:
        """Records the next op of the graph."""
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
    """True for a product of complex numbers: each part is a sum of two products, of which only one is contracted."""
    return op.name == MUL and any(str(type_).startswith("complex") for type_ in op.outputs)


def _rank(arg: Arg) -> tuple:
    return (0, arg.index, "") if isinstance(arg, Ref) else (1, 0, repr(arg))


@dataclass(slots=True)
class Chain:
    """A left-to-right sum whose partial sums have no other use, up to the last add that was processed.

    Attributes:
        head: the region input where the sum starts; it may have other uses.
        terms: the region inputs that are added, in order; none has another use.
        term: the dtype in which the terms are stored.
        swaps: whether its head and its only term could be exchanged.
    """

    head: int
    terms: list[int]
    term: str
    swaps: bool

    def swap(self, term: str) -> None:
        """Exchanges the head, which is stored in this dtype, and the only term."""
        self.head, self.terms, self.term = self.terms[0], [self.head], term


@dataclass(frozen=True, slots=True)
class Collapsed:
    """A graph whose residual chains are ``residual`` ops, with the terms of each one by its result."""

    graph: Graph
    terms: Mapping[int, tuple[int, ...]]


def collapse(graph: Graph) -> Collapsed:
    """Replaces each residual chain by one op without terms. ``graph`` is simplified and has no dead ops.

    Only region inputs, or conversions of them, become terms. A term computed in the region stays there, because its
    last multiplication may be contracted with the add into one rounding.
    """
    chains = _chains(graph)
    if not chains:
        return Collapsed(graph, {first: () for op, first in graph.results() if op.name == RESIDUAL})
    inside = _partial_sums(graph, chains)
    writer = GraphWriter(graph)
    terms: dict[int, tuple[int, ...]] = {}
    for op, first in graph.results():
        chain = chains.get(first)
        if chain is not None:
            op = Op(RESIDUAL, (Ref(chain.head), Const("dtype", chain.term)), op.outputs)
        if first not in inside:
            writer.copy(op, first)
        if op.name == RESIDUAL:
            terms[writer.new(first).index] = tuple(chain.terms) if chain else ()
    return Collapsed(writer.graph(graph.outputs), terms)


def _chains(graph: Graph) -> dict[int, Chain]:
    """Returns the chains by the number of their last sum."""
    finder = _ChainFinder(graph)
    chains: dict[int, Chain] = {}
    for op, first in graph.results():
        finder.define(op, first)
        chain = finder.extend(op, chains) or finder.start(op)
        if chain is not None:
            chains[first] = chain
    for chain in chains.values():
        # In a single add of two dtypes either side could be the head: the dtype with the greater name is chosen.
        head = graph.inputs[chain.head]
        if chain.swaps and isinstance(head, TensorType) and head.dtype < chain.term:
            chain.swap(head.dtype)
    return chains


class _ChainFinder:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.uses = _count_uses(graph)
        self.converted: dict[int, int] = {}
        self.type: Sequence[Any] = graph.types

    def define(self, op: Op, first: int) -> None:
        if op.name == CONVERT and isinstance(op.args[0], Ref) and self._is_input(op.args[0].index):
            self.converted[first] = op.args[0].index

    def extend(self, op: Op, chains: dict[int, Chain]) -> Chain | None:
        """Returns the chain that this add extends: one operand is the chain's sum and has no other use."""
        for partial, term in self._sides(op):
            chain = chains.get(partial)
            source = self._term(term, op)
            if chain is None or source is None or self.uses[partial] != 1:
                continue
            dtype = self.type[source].dtype
            if dtype != chain.term and chain.swaps and dtype == self.type[chain.head].dtype:
                chain.swap(dtype)
            if dtype == chain.term:
                chain.terms.append(source)
                chain.swaps = False
                return chains.pop(partial)
        return None

    def start(self, op: Op) -> Chain | None:
        """Returns the one-term chain of this add, if both operands are region inputs or conversions of them."""
        for left, right in self._sides(op):
            head, term = self._source(left, op), self._term(right, op)
            if head is not None and term is not None and head != term:
                swaps = self._term(left, op) is not None
                return Chain(head, [term], self.type[term].dtype, swaps)
        return None

    def _sides(self, op: Op) -> tuple[tuple[int, int], ...]:
        if op.name != ADD or op.kwargs:
            return ()
        match op.args:
            case (Ref(left), Ref(right)):
                return (left, right), (right, left)
        return ()

    def _is_input(self, value: int) -> bool:
        return value < len(self.graph.inputs) and isinstance(self.graph.inputs[value], TensorType)

    def _source(self, value: int, add: Op) -> int | None:
        """Returns the region input of the sum's shape that an add's operand is, directly or converted; else None."""
        source = self.converted.get(value, value)
        total = add.outputs[0]
        if not self._is_input(source) or self.type[value] != total:
            return None
        return source if replace(self.type[source], dtype=self.type[value].dtype) == total else None

    def _term(self, value: int, add: Op) -> int | None:
        """Like ``_source``, for an operand that is used nowhere else."""
        source = self._source(value, add)
        if source is None or self.uses[value] != 1 or self.uses[source] != 1:
            return None
        return source


def _count_uses(graph: Graph) -> Counter[int]:
    """Returns how many operands and outputs each value is."""
    return Counter([*(index for op in graph.ops for _, index in operands(op)), *graph.outputs])


def _partial_sums(graph: Graph, chains: dict[int, Chain]) -> set[int]:
    """Returns the results that only a chain uses: its partial sums and its conversions."""
    defined = {first: op for op, first in graph.results()}
    uses = _count_uses(graph)
    inside: set[int] = set()
    pending = list(chains)
    while pending:
        for _, value in operands(defined[pending.pop()]):
            if value in defined and value not in chains and uses[value] == 1:
                inside.add(value)
                pending.append(value)
    return inside
