"""Residual chains: found in a graph, and each made one parametrized op."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from fusioncache.ir import Const, Graph, Op, Ref, TensorType, operands
from fusioncache.ir.ops import ADD, CONVERT, RESIDUAL
from fusioncache.template.writer import GraphWriter


@dataclass(frozen=True, slots=True)
class Chain:
    """A left-to-right sum whose partial sums nobody else uses.

    Attributes:
        head: the region input where the sum starts; it may have other uses.
        terms: the region inputs that are added, in order; each has this one use.
        term: the dtype in which the terms are stored.
    """

    head: int
    terms: tuple[int, ...]
    term: str


@dataclass(frozen=True, slots=True)
class Collapsed:
    """A graph whose residual chains are ``residual`` ops, and the terms of each of these, in the order of the ops."""

    graph: Graph
    terms: tuple[tuple[int, ...], ...]


def collapse(graph: Graph) -> Collapsed:
    """Replaces each residual chain by one op without terms. ``graph`` is simplified and has no dead ops.

    Only region inputs, or conversions of them, become terms: a term computed in the region stays there, because its
    last multiplication may be contracted with the add into one rounding (soundness rule 3).
    """
    chains = _chains(graph)
    if not chains:
        return Collapsed(graph, tuple(() for op in graph.ops if op.name == RESIDUAL))
    inside = _partial_sums(graph, chains)
    writer = GraphWriter(graph)
    terms: list[tuple[int, ...]] = []
    for op, first in graph.results():
        chain = chains.get(first)
        if chain is not None:
            op = Op(RESIDUAL, (Ref(chain.head), Const("dtype", chain.term)), op.outputs)
        if op.name == RESIDUAL:
            terms.append(chain.terms if chain else ())
        if first not in inside:
            writer.copy(op, first)
    return Collapsed(writer.graph(graph.outputs), tuple(terms))


def _chains(graph: Graph) -> dict[int, Chain]:
    """Returns the chains by the number of their last sum."""
    finder = _Finder(graph)
    chains: dict[int, _Growing] = {}
    for op, first in graph.results():
        finder.define(op, first)
        chain = finder.extend(op, chains) or finder.start(op)
        if chain is not None:
            chains[first] = chain
    return {last: _settle(graph, chain) for last, chain in chains.items()}


def _settle(graph: Graph, chain: _Growing) -> Chain:
    """Of one add whose two sides differ in dtype either could be the head: take the one with the greater name."""
    head = graph.inputs[chain.head]
    if chain.swaps and isinstance(head, TensorType) and head.dtype < chain.term:
        chain.swap(head.dtype)
    return Chain(chain.head, tuple(chain.terms), chain.term)


@dataclass(slots=True)
class _Growing:
    """A chain as far as it was followed. ``swaps``: whether its head and its only term could be exchanged."""

    head: int
    terms: list[int]
    term: str
    swaps: bool

    def swap(self, term: str) -> None:
        self.head, self.terms, self.term = self.terms[0], [self.head], term


class _Finder:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.uses = Counter(index for op in graph.ops for _, index in operands(op))
        self.uses.update(graph.outputs)
        self.converted: dict[int, int] = {}
        self.type: list = [*graph.inputs, *[None] * graph.sizes]

    def define(self, op: Op, first: int) -> None:
        self.type.extend(op.outputs)
        if op.name == CONVERT and isinstance(op.args[0], Ref) and self._is_input(op.args[0].index):
            self.converted[first] = op.args[0].index

    def extend(self, op: Op, chains: dict[int, _Growing]) -> _Growing | None:
        """Returns the chain that goes on with this add from one of its operands, which nobody else uses."""
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

    def start(self, op: Op) -> _Growing | None:
        """Returns the chain of one term that this add is, if both operands are region inputs."""
        for left, right in self._sides(op):
            head, term = self._source(left, op), self._term(right, op)
            if head is not None and term is not None and head != term:
                swaps = self._term(left, op) is not None
                return _Growing(head, [term], self.type[term].dtype, swaps)
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
        """Returns the region input, of the sum's shape, that this operand of an add is or is a conversion of."""
        source = self.converted.get(value, value)
        if not self._is_input(source):
            return None
        raw, total = self.type[source], add.outputs[0]
        if not isinstance(raw, TensorType) or self.type[value] != total:
            return None
        return source if replace(raw, dtype=self.type[value].dtype) == total else None

    def _term(self, value: int, add: Op) -> int | None:
        """Like ``_source``, for an operand that is used nowhere else."""
        source = self._source(value, add)
        if source is None or self.uses[value] != 1 or self.uses[source] != 1:
            return None
        return source


def _partial_sums(graph: Graph, chains: dict[int, Chain]) -> set[int]:
    """Returns the results that exist only for the sake of a chain: its partial sums and its conversions."""
    defined = {first: op for op, first in graph.results()}
    uses = Counter(index for op in graph.ops for _, index in operands(op))
    uses.update(graph.outputs)
    inside: set[int] = set()
    pending = list(chains)
    while pending:
        for _, value in operands(defined[pending.pop()]):
            if value in defined and value not in chains and uses[value] == 1:
                inside.add(value)
                pending.append(value)
    return inside
