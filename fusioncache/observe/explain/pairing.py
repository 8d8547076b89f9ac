"""Pairs the values of two graphs that are nearly equal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping

from fusioncache.ir import Arg, Graph, Op, Ref, ValueType, map_type
from fusioncache.ir.graph import argument_refs
from fusioncache.ir.ops import op_traits
from fusioncache.template.text import read_graph

type Edges = dict[int, list[tuple[str, int]]]
"""For each node its neighbours, each with a label of the edge: the argument's path, and the index of the result."""

_LEVELS = 8
"""The number of labels of a node."""


class Nodes:
    """The inputs, sizes and ops of a graph, and their partners in another graph.

    A node's number is that of its value, an op's that of its first result.

    Args:
        graph: the graph.
        interned: a number for each description of a node and its surroundings, for both graphs.

    Attributes:
        graph: the graph.
        op_at: the op of each node that is one.
        numbers: the numbers of these ops, from 1.
        node_of: the node of each value.
        used: for each node the nodes that it uses.
        users: the inverse.
        labels: see ``label_nodes``.
        partner: maps each paired node to that of the other graph.
    """

    def __init__(self, graph: Graph, interned: dict[Hashable, int]):
        self.graph = graph
        self.op_at: dict[int, Op] = {}
        self.numbers: dict[int, int] = {}
        self.node_of = {value: value for value in range(graph.first_result)}
        for number, (op, first) in enumerate(graph.results(), 1):
            self.op_at[first], self.numbers[first] = op, number
            self.node_of.update({first + index: first for index in range(len(op.outputs))})
        self.used: Edges = {node: [] for node in self.node_of.values()}
        self.users: Edges = {node: [] for node in self.used}
        for node, op in self.op_at.items():
            for path, value in edges(op):
                label, used = f"{path}.{self.result_index(value)}", self.node_of[value]
                self.used[node].append((label, used))
                self.users[used].append((label, node))
        self.labels = label_nodes(self, interned)
        self.partner: dict[int, int] = {}

    @property
    def alone(self) -> list[int]:
        """The ops without a partner."""
        return [node for node in self.op_at if node not in self.partner]

    def op(self, value: int) -> Op | None:
        """Returns the op that computes a value; None if it is an input or a size."""
        return self.op_at.get(self.node_of[value])

    def result_index(self, value: int) -> int:
        """Returns the index of a value among its op's results, from 0."""
        return value - self.node_of[value]

    def find_partner(self, value: int) -> int | None:
        """Returns the corresponding value of the other graph, or None."""
        node = self.partner.get(self.node_of[value])
        return None if node is None else node + self.result_index(value)

    def pass_unpaired(self, value: int) -> int:
        """Returns the value; for a result of an unpaired op, the first operand, and so on until one is paired."""
        while (op := self.op(value)) and self.node_of[value] not in self.partner and (uses := list(edges(op))):
            value = uses[0][1]
        return value

    def group_alone(self, level: int) -> Mapping[Hashable, list[int]]:
        """Returns the ops without a partner by their labels of a level, in the order of all ops with these labels."""
        found: dict[Hashable, list[int]] = {self.labels[node][level]: [] for node in self.op_at}
        for node in self.alone:
            found[self.labels[node][level]].append(node)
        return found


def edges(op: Op) -> Iterator[tuple[str, int]]:
    """Yields each value that an op uses, with its path. The two operands of a commutative op have the same path."""
    for path, value in argument_refs(op):
        yield ("operand" if op_traits(op.name).commutes and path in ("0", "1") else path), value


def label_nodes(nodes: Nodes, interned: dict[Hashable, int]) -> dict[int, tuple[Hashable, ...]]:
    """Returns the labels of each node, the most specific first. Nodes of two graphs with equal labels may correspond.

    The labels summarize the node's inputs and users, only its inputs, and only its users; then the same three without
    types and literals; then the node alone. Linear.
    """
    found = []
    for full in (True, False):
        own = {node: _describe(nodes, node, full) for node in nodes.used}
        below = _summarize(nodes.used, own, nodes.used, interned)
        above = _summarize(reversed(nodes.used), own, nodes.users, interned)
        found.append({node: ((below[node], above[node]), below[node], above[node], own[node][0]) for node in own})
    return {node: (*full[:3], *found[1][node], "") for node, full in found[0].items()}


def _describe(nodes: Nodes, node: int, full: bool) -> tuple[Hashable, ...]:
    """Returns a description of a node alone: with types and literals if ``full``, else only its op's name."""
    if (op := nodes.op(node)) is not None:
        return describe_op(op) if full else (op.name,)
    if node >= len(nodes.graph.inputs):
        return ("size",)
    return "input", _anonymous(nodes.graph.inputs[node]) if full else ""


def _summarize(
    order: Iterable[int], own: Mapping[int, Hashable], near: Edges, interned: dict[Hashable, int]
) -> dict[int, int]:
    """Returns for each node a number that represents it and everything reachable from it."""
    numbers: dict[int, int] = {}
    for node in order:
        around = tuple(sorted((label, numbers[other]) for label, other in near[node]))
        numbers[node] = interned.setdefault((own[node], around), len(interned))
    return numbers


def describe_op(op: Op) -> tuple[Hashable, ...]:
    """Returns a description of an op without the values that it uses, and without the order of commutative operands."""
    args = [_literal(arg) for arg in op.args]
    ordered = sorted(map(repr, args)) if op_traits(op.name).commutes else args
    kwargs = tuple((name, _literal(arg)) for name, arg in op.kwargs)
    return op.name, tuple(ordered), kwargs, tuple(map(_anonymous, op.outputs))


def _anonymous(type_: ValueType | None) -> ValueType | None:
    return map_type(type_, lambda _: Ref(-1))


def _literal(arg: Arg) -> Hashable:
    """Returns an argument without value numbers."""
    if isinstance(arg, Ref):
        return "%"
    return tuple(map(_literal, arg)) if isinstance(arg, tuple) else arg


class Pairing:
    """Pairs the inputs, sizes and ops of two graphs.

    The order of inputs, ops and commutative operands depends on the whole graph, so one change may change all of it.
    Therefore nodes are paired by their inputs and users rather than by number: by labels, the most specific first, and
    neighbours of paired nodes before others.

    Args:
        a: the ingredients of the key of graph A, name to text.
        b: those of graph B.

    Raises:
        ValueError: if a graph cannot be read.

    Attributes:
        a: the nodes of A.
        b: the nodes of B.
        rewired: ops of A whose partners use other values.
        outputs_a: outputs that only A has.
        outputs_b: outputs that only B has.
    """

    def __init__(self, a: Mapping[str, str], b: Mapping[str, str]):
        interned: dict[Hashable, int] = {}
        self.a, self.b = (Nodes(read_graph(texts), interned) for texts in (a, b))
        for level in range(_LEVELS):
            self._pair_neighbours(level)
            if level < _LEVELS - 1:
                self._pair_alike(level)
        self._pair_leaves()
        self.rewired = [x for x, y in self.a.partner.items() if self._list_other_operands(x, y)]
        self.outputs_a, self.outputs_b = self._compare_outputs()

    def _pair_alike(self, level: int) -> None:
        """Pairs ops with equal labels, in order."""
        groups, others = (side.group_alone(level) for side in (self.a, self.b))
        for label, nodes in groups.items():
            for x, y in zip(nodes, others.get(label, ()), strict=False):
                self._pair(x, y)

    def _pair_neighbours(self, level: int) -> None:
        """Pairs ops with equal labels that are neighbours of paired ops, or at the same output."""
        ends_a, ends_b = ([side.node_of[value] for value in side.graph.outputs] for side in (self.a, self.b))
        ends = [(x, y) for x, y in zip(ends_a, ends_b, strict=False) if self._pair_if_alike(x, y, level)]
        waiting = [*self.a.partner.items(), *ends]
        while waiting:
            x, y = waiting.pop()
            for near_x, near_y in ((self.a.used, self.b.used), (self.a.users, self.b.users)):
                beside = defaultdict[str, list[int]](list)
                for label, node in near_y[y]:
                    beside[label].append(node)
                near = ((node, other) for label, node in near_x[x] for other in beside[label])
                waiting += [pair for pair in near if self._pair_if_alike(*pair, level)]

    def _pair_if_alike(self, x: int, y: int, level: int) -> bool:
        are_ops = x in self.a.op_at and y in self.b.op_at
        are_free = are_ops and x not in self.a.partner and y not in self.b.partner
        if not are_free or self.a.labels[x][level] != self.b.labels[y][level]:
            return False
        self._pair(x, y)
        return True

    def _pair(self, x: int, y: int) -> None:
        self.a.partner[x], self.b.partner[y] = y, x

    def _pair_leaves(self) -> None:
        """Pairs inputs that paired ops use at the same position, the most frequent pairs first, and sizes in order."""
        used = [each for pair in self.a.partner.items() for each in self._list_other_operands(*pair)]
        met = Counter((x, y) for x, y in used if x < len(self.a.graph.inputs) and y < len(self.b.graph.inputs))
        for (x, y), _ in met.most_common():
            if x not in self.a.partner and y not in self.b.partner:
                self._pair(x, y)
        sizes = (range(len(side.graph.inputs), side.graph.first_result) for side in (self.a, self.b))
        for x, y in zip(*sizes, strict=False):
            self._pair(x, y)

    def _list_other_operands(self, x: int, y: int) -> list[tuple[int, int]]:
        """Returns values that two ops use at one position and that are not paired. Skips ops of one graph only."""
        a, b = self.a.op(x), self.b.op(y)
        if a is None or b is None:
            return []
        read = edges if op_traits(a.name).commutes and op_traits(b.name).commutes else argument_refs
        left, free = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
        for path, value in read(b):
            free[path].append(self.b.pass_unpaired(value))
        for path, value in read(a):
            one = self.a.pass_unpaired(value)
            other = self.a.find_partner(one)
            if other in free[path]:
                free[path].remove(other)
            else:
                left[path].append(one)
        return [pair for path in left for pair in zip(left[path], free[path], strict=False)]

    def _compare_outputs(self) -> tuple[list[int], list[int]]:
        """Returns the outputs that only A has, and those that only B has, without as many as replace one another."""
        outputs, in_a = set(self.a.graph.outputs), {self.b.find_partner(value) for value in self.b.graph.outputs}
        a = [value for value in self.a.graph.outputs if value not in in_a]
        b = [value for value in self.b.graph.outputs if self.b.find_partner(value) not in outputs]
        number = min(len(a), len(b))
        return a[number:], b[number:]


def type_of(nodes: Nodes, value: int) -> ValueType | None:
    """Returns the type of a value; None for a size, and for an unused result."""
    op = nodes.op(value)
    if op is not None:
        return op.outputs[nodes.result_index(value)]
    return nodes.graph.inputs[value] if value < len(nodes.graph.inputs) else None
