"""Canonicalization: from a region to its template's graph and the binding between them.

The order of a graph's nodes must not depend on how the graph was written down. It comes from partition refinement
(one-dimensional Weisfeiler-Leman), O(m log n) for n nodes and m edges: Cardon and Crochemore, "Partitioning a graph in
O(|A| log2 |V|)", 1982; Paige and Tarjan, "Three partition refinement algorithms", 1987. Marks split cells that
refinement leaves together. After that, one node of a cell is picked at a time. The pick does not matter if a symmetry
of the graph exchanges the nodes, which is nearly always so. If none does, two equal regions may get different texts: a
missed sharing, never a wrong one.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache as remember

from fusioncache.ir import (
    Arg,
    Binding,
    Declined,
    Graph,
    Op,
    Ref,
    Scope,
    TensorType,
    ValueType,
    operands,
    refs_in,
)
from fusioncache.ir.ops import op_traits
from fusioncache.template.simplify import Collapsed, Commuting, collapse, simplify
from fusioncache.template.skeleton import blank_args, blank_type, read_each
from fusioncache.template.text import type_text
from fusioncache.template.writer import renumber

Edge = tuple[int, int, str]
"""From a node to a node that it uses, with a label that names the operand."""

Mark = tuple[float, ...]
"""Distinguishes nodes only if colours and edges do not."""


def canonical_ranks(
    colours: Sequence[str], edges: Sequence[Edge], find_marks: Callable[[], Sequence[Mark]]
) -> list[int]:
    """Returns each node's position in an order of all nodes.

    Args:
        colours: a text for each node that is equal for every writing of the graph.
        edges: the edges, with labels of the same kind.
        find_marks: returns a mark for each node. It is called only if colours and edges do not separate all nodes.
    """
    partition = _Partition(colours, edges)
    if len(set(colours)) == len(colours):
        return partition.cell
    partition.refine(range(len(colours)))
    if all(size <= 1 for size in partition.size):
        return partition.cell
    marks, start = find_marks(), 0
    while start < len(colours):
        partition.split_by_marks(start, marks)
        start += partition.size[start]
    start = 0
    while start < len(colours):
        if partition.size[start] == 1:
            start += 1
        else:
            partition.single_out(start)
    return partition.cell


class _Partition:
    """An ordered partition of the nodes into cells. A cell is identified by the position where it starts."""

    def __init__(self, colours: Sequence[str], edges: Sequence[Edge]):
        count = len(colours)
        self.order = sorted(range(count), key=colours.__getitem__)
        self.position = [0] * count
        self.cell = [0] * count
        self.size = [0] * count
        start = 0
        for position, node in enumerate(self.order):
            if position and colours[node] != colours[self.order[position - 1]]:
                start = position
            self.position[node], self.cell[node] = position, start
            self.size[start] += 1
        self.neighbours: list[list[tuple[int, str]]] = [[] for _ in range(count)]
        for user, used, label in edges:
            self.neighbours[user].append((used, f"<{label}"))
            self.neighbours[used].append((user, f">{label}"))

    def members(self, start: int) -> list[int]:
        return self.order[start : start + self.size[start]]

    def split_by_marks(self, start: int, marks: Sequence[Mark]) -> None:
        """Splits a cell into one for each mark of its nodes, in the order of the marks, then refines."""
        groups: dict[Mark, list[int]] = {}
        for node in self.members(start):
            groups.setdefault(marks[node], []).append(node)
        if len(groups) > 1:
            behind = [groups[mark] for mark in sorted(groups)[1:]]
            self.refine(self._divide(start, behind)[1:])

    def single_out(self, start: int) -> None:
        """Splits one node of a cell off into a cell of its own, then refines."""
        self.refine(self._divide(start, [[self.order[start]]])[-1:])

    def refine(self, splitters: Iterable[int]) -> None:
        """Splits cells until all nodes of a cell have the same edges to every cell."""
        pending = deque(start for start in splitters if self.size[start])
        waiting = set(pending)
        while pending:
            splitter = pending.popleft()
            waiting.discard(splitter)
            for start, fragments in self._split_by(splitter):
                was_waiting = start in waiting
                starts = self._divide(start, fragments)
                # Hopcroft's trick: edges into the largest part follow from edges into the whole and the other parts.
                largest = None if was_waiting else max(starts, key=self.size.__getitem__)
                for new in starts:
                    if new != largest and new not in waiting:
                        waiting.add(new)
                        pending.append(new)

    def _split_by(self, splitter: int) -> list[tuple[int, list[list[int]]]]:
        """Returns the cells whose nodes have different edges to the splitter, with touched nodes grouped by edges."""
        labels: dict[int, list[str]] = {}
        for node in self.members(splitter):
            for neighbour, label in self.neighbours[node]:
                if self.size[self.cell[neighbour]] > 1:
                    labels.setdefault(neighbour, []).append(label)
        cells: dict[int, dict[tuple[str, ...], list[int]]] = {}
        for node, found in labels.items():
            cells.setdefault(self.cell[node], {}).setdefault(tuple(sorted(found)), []).append(node)
        return [
            (start, [groups[key] for key in sorted(groups)])
            for start, groups in sorted(cells.items())
            if len(groups) > 1 or sum(map(len, groups.values())) < self.size[start]
        ]

    def _divide(self, start: int, fragments: list[list[int]]) -> list[int]:
        """Makes each fragment of a cell a new cell, behind the cell's nodes that are in no fragment.

        The other nodes keep their cell and are not touched: touching them would cost more than n log n.

        Returns:
            The start positions of the cell and the new cells.
        """
        position = start + self.size[start] - sum(map(len, fragments))
        starts = [start] if position > start else []
        self.size[start] = position - start
        for fragment in fragments:
            starts.append(position)
            self.size[position] = len(fragment)
            for node in fragment:
                self._swap(node, position)
                position += 1
        for new, fragment in zip(starts[-len(fragments) :], fragments, strict=True):
            for node in fragment:
                self.cell[node] = new
        return starts

    def _swap(self, node: int, position: int) -> None:
        other, old = self.order[position], self.position[node]
        self.order[position], self.order[old] = node, other
        self.position[node], self.position[other] = position, old


@dataclass(frozen=True, slots=True)
class Canonical:
    """A graph in canonical order, and the binding of a region to it."""

    graph: Graph
    binding: Binding


def canonicalize(region: Graph, *, chains: bool = True) -> Canonical:
    """Returns a region in canonical form, without accidental differences. O(n log n) in its ops.

    Canonical form does not depend on names, the order of inputs, outputs and independent ops, the order of commutative
    operands, identities, dead and duplicate ops, and the number of terms of each residual chain.

    Values in holes (``skeleton.py``) are part of the text. They and the numbers of terms do not affect the order,
    except among ops and inputs that are otherwise alike.

    Args:
        region: the region.
        chains: whether to make residual chains parametrized ops; if False, every add remains.

    Raises:
        Declined: if an output is an input, or a view of a value written in place, or if a symbolic size occurs in no
            input that is used.
    """
    simple = simplify(region)
    if any(value < simple.first_result for value in simple.outputs):
        raise Declined("an output is an input", Scope.REGION)
    collapsed = collapse(simple) if chains else Collapsed(simple, {})
    return CanonicalWriter(collapsed).make_canonical()


class CanonicalWriter:
    """Writes the ops of a graph depth first from its outputs, in an order that depends on their structure alone.

    Effects come last; nothing uses their results.
    """

    def __init__(self, collapsed: Collapsed):
        self.old = collapsed.graph
        self.terms = collapsed.terms
        self.ops: dict[int, tuple[Op, int]] = {}  # by the number of each result: the op and its first result
        commuting = Commuting(self.old.first_result)
        self.commutes: set[int] = set()
        for op, first in self.old.results():
            self.ops.update({first + position: (op, first) for position in range(len(op.outputs))})
            if commuting.commutes(op):
                self.commutes.add(first)
            commuting.define(op)
        self.rank = _ranks(collapsed, self.commutes)

    def make_canonical(self) -> Canonical:
        """Returns the canonical graph, and the binding of the original graph to it."""
        outputs = sorted(set(self.old.outputs), key=self._order)
        effects = sorted((first for op, first in self.old.results() if op_traits(op.name).writes), key=self._order)
        inputs, ops = self._visit(list(dict.fromkeys([*outputs, *effects])))
        written = set(effects)
        ops = [*(first for first in ops if first not in written), *effects] if effects else ops
        sizes = list(dict.fromkeys(value for value in inputs if self._is_size(value)))
        slots = sorted((value for value in inputs if not self._is_size(value)), key=self._is_tensor)
        carried = {index for slot in slots for _, index in refs_in(self.old.inputs[slot])}
        if not carried.issuperset(sizes):
            raise Declined("a symbolic size occurs in no used input", Scope.REGION)
        number = {value: position for position, value in enumerate([*slots, *sizes])}
        graph = self._renumber(slots, sizes, ops, outputs, number)
        position = {value: index for index, value in enumerate(outputs)}
        terms = tuple(self.terms[first] for first in ops if first in self.terms)
        return Canonical(graph, Binding(tuple(slots), terms, tuple(position[value] for value in self.old.outputs)))

    def _visit(self, outputs: list[int]) -> tuple[list[int], list[int]]:
        """Returns the used inputs and sizes, and the ops by their first result, each in the order of first use."""
        inputs: dict[int, None] = {}
        done: dict[int, None] = {}
        stack = [(value, False) for value in reversed(outputs)]
        while stack:
            value, ready = stack.pop()
            if value not in self.ops:
                inputs.setdefault(value)
                if value < len(self.old.inputs):
                    for _, size in refs_in(self.old.inputs[value]):
                        inputs.setdefault(size)
                continue
            op, first = self.ops[value]
            if first in done:
                continue
            if ready:
                done[first] = None
                continue
            stack.append((value, True))
            used = [index for _, index in operands(self._sort_operands(op, first))]
            stack.extend((index, False) for index in reversed(used))
        return list(inputs), list(done)

    def _renumber(
        self, slots: list[int], sizes: list[int], ops: list[int], outputs: list[int], number: dict[int, int]
    ) -> Graph:
        for first in ops:
            for value in range(first, first + len(self.ops[first][0].outputs)):
                number[value] = len(number)
        inputs = [self.old.inputs[slot] for slot in slots]
        written = [self._sort_operands(self.ops[first][0], first) for first in ops]
        return renumber(lambda value: Ref(number[value]), inputs, written, outputs, len(sizes))

    def _sort_operands(self, op: Op, first: int) -> Op:
        if first not in self.commutes:
            return op
        return Op(op.name, tuple(sorted(op.args, key=self._operand_order)), op.outputs, op.kwargs)

    def _operand_order(self, arg: Arg) -> tuple:
        return (0, *self._order(arg.index)) if isinstance(arg, Ref) else (1, repr(arg), 0)

    def _order(self, value: int) -> tuple[int, int]:
        first = self.ops[value][1] if value in self.ops else value
        return self.rank[first], value - first

    def _is_size(self, value: int) -> bool:
        return len(self.old.inputs) <= value < self.old.first_result

    def _is_tensor(self, value: int) -> bool:
        return isinstance(self.old.inputs[value], TensorType)


def _ranks(collapsed: Collapsed, commutes: set[int]) -> dict[int, int]:
    """Returns a rank for each input, each size and each op, which is identified by its first result."""
    graph = collapsed.graph
    node_of = {value: value for value in range(graph.first_result)}
    nodes = list(range(graph.first_result))
    for op, first in graph.results():
        node_of.update({first + position: len(nodes) for position in range(len(op.outputs))})
        nodes.append(first)
    edges = list(_edges(graph, node_of, commutes))

    def find_marks() -> list[Mark]:
        arities = [len(collapsed.terms.get(first, ())) for first in nodes]
        return [(arity, *contents) for arity, contents in zip(arities, read_each(graph), strict=True)]

    ranks = canonical_ranks(_colours(graph, edges, nodes), edges, find_marks)
    return dict(zip(nodes, ranks, strict=True))


def _edges(graph: Graph, node_of: dict[int, int], commutes: set[int]) -> Iterator[Edge]:
    for slot, type_ in enumerate(graph.inputs):
        for path, size in refs_in(type_):
            yield slot, size, f"size{path}"
    first_of = {node_of[first]: first for _, first in graph.results()}
    for op, first in graph.results():
        for path, used in operands(op):
            where = "operand" if first in commutes and path in ("0", "1") else path
            result = used - first_of.get(node_of[used], used)
            yield node_of[first], node_of[used], f"{where}:{result}"


def _colours(graph: Graph, edges: list[Edge], nodes: list[int]) -> list[str]:
    """Returns a digest for each node: of its operands, of which results are outputs, and of its users, transitively.

    The contents of holes are left out.
    """
    below: list[list[tuple[int, str]]] = [[] for _ in nodes]
    above: list[list[tuple[int, str]]] = [[] for _ in nodes]
    for user, used, label in edges:
        below[user].append((used, label))
        above[used].append((user, label))
    text_of = remember(lambda type_: type_text(blank_type(type_), anonymous=True))
    labels = [f"input {text_of(type_)}" for type_ in graph.inputs]
    labels += ["size"] * graph.sizes
    wanted = set(graph.outputs)
    for op, first in graph.results():
        is_output = [first + position in wanted for position in range(len(op.outputs))]
        labels.append(f"{_op_label(op, text_of)} {is_output}")
    colours = [""] * len(nodes)
    sizes_first = sorted(range(len(nodes)), key=lambda node: not len(graph.inputs) <= node < graph.first_result)
    for node in sizes_first:
        colours[node] = _digest(labels[node], *sorted(f"{label} {colours[used]}" for used, label in below[node]))
    for node in reversed(range(len(nodes))):
        colours[node] = _digest(colours[node], *sorted(f"{label} {colours[user]}" for user, label in above[node]))
    return colours


def _op_label(op: Op, text_of: Callable[[ValueType | None], str]) -> str:
    """Returns a text of an op without the values that it uses and the contents of its holes."""

    def shape_of(arg: Arg) -> str:
        if isinstance(arg, Ref):
            return "%"
        return f"({' '.join(map(shape_of, arg))})" if isinstance(arg, tuple) else f"{arg.kind} {arg.text}"

    args = [shape_of(arg) for arg in blank_args(op)]
    if len(args) == 2:
        args.sort()
    kwargs = [f"{name}={shape_of(arg)}" for name, arg in op.kwargs]
    results = [text_of(type_) for type_ in op.outputs]
    return "\x1f".join([op.name, *args, *kwargs, *results])


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\x1e".join(parts).encode(), digest_size=16).hexdigest()
