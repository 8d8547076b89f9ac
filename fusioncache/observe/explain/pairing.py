"""Which value of one graph is which value of another one that is nearly the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from operator import eq

from fusioncache.ir import Arg, Graph, Op, Ref, TensorType, ValueType, map_type
from fusioncache.ir.graph import argument_refs
from fusioncache.ir.keys import GRAPH
from fusioncache.ir.ops import op_traits
from fusioncache.template.text import read_graph

type Edges = dict[int, list[tuple[str, int]]]
"""For each node those next to it, each with what the edge is: where in an op's arguments, and which result is used."""

_REMEMBERED = 16
"""How many pairings a process remembers, so that no two graphs are paired twice for one answer."""


class Nodes:
    """The inputs, sizes and ops of a graph. A node's number is that of its value, an op's that of its first result."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.op_at: dict[int, tuple[int, Op]] = {}
        self.node_of = {value: value for value in range(graph.first_result)}
        for number, (op, first) in enumerate(graph.results(), 1):
            self.op_at[first] = (number, op)
            self.node_of.update({first + index: first for index in range(len(op.outputs))})
        self.used: Edges = {node: [] for node in self.node_of.values()}
        self.users: Edges = {node: [] for node in self.used}
        for node, (_, op) in self.op_at.items():
            for path, value in edges(op):
                label, used = f"{path}.{self.result_index(value)}", self.node_of[value]
                self.used[node].append((label, used))
                self.users[used].append((label, node))

    def op(self, value: int) -> Op | None:
        """Returns the op that computes a value; None if it is an input or a size."""
        return self.op_at.get(self.node_of[value], (0, None))[1]

    def number(self, value: int) -> int:
        """Returns which op, from 1, computes a value; 0 if it is an input or a size."""
        return self.op_at.get(self.node_of[value], (0, None))[0]

    def result_index(self, value: int) -> int:
        """Returns which of its op's results a value is, from 0."""
        return value - self.node_of[value]


def edges(op: Op) -> Iterator[tuple[str, int]]:
    """Returns each value that an op uses, with its path. The two operands of a commutative op have one path."""
    for path, value in argument_refs(op):
        yield ("operand" if op_traits(op.name).commutes and path in ("0", "1") else path), value


def label_nodes(nodes: Nodes, interned: dict[Hashable, int]) -> dict[int, tuple[Hashable, ...]]:
    """Returns labels of each node, the most telling first: nodes of two graphs with an equal label may be the same.

    They say what the node is computed from and what is computed from it, each of these alone, and the same three
    without types and literals; then what the node is by itself. Linear.
    """
    found = []
    for full in (True, False):
        own = {node: _describe(nodes, node, full) for node in nodes.used}
        below = _summarize(nodes.used, own, nodes.used, interned)
        above = _summarize(reversed(nodes.used), own, nodes.users, interned)
        found.append({node: ((below[node], above[node]), below[node], above[node], own[node][0]) for node in own})
    return {node: (*full[:3], *found[1][node], "") for node, full in found[0].items()}


def _describe(nodes: Nodes, node: int, full: bool) -> tuple[Hashable, ...]:
    """Returns what a node is by itself: in full, or no more than its op's name."""
    if (op := nodes.op(node)) is not None:
        return describe_op(op) if full else (op.name,)
    if node >= len(nodes.graph.inputs):
        return ("size",)
    return "input", _anonymous(nodes.graph.inputs[node]) if full else ""


def _summarize(
    order: Iterable[int], own: Mapping[int, Hashable], near: Edges, interned: dict[Hashable, int]
) -> dict[int, int]:
    """Returns for each node a number for itself and all that it leads to."""
    numbers: dict[int, int] = {}
    for node in order:
        around = tuple(sorted((label, numbers[other]) for label, other in near[node]))
        numbers[node] = interned.setdefault((own[node], around), len(interned))
    return numbers


def describe_op(op: Op) -> tuple[Hashable, ...]:
    """Returns all about an op but which values it uses, and the order of a commutative op's arguments."""
    args = [_literal(arg) for arg in op.args]
    ordered = sorted(map(repr, args)) if op_traits(op.name).commutes else args
    kwargs = tuple((name, _literal(arg)) for name, arg in op.kwargs)
    return op.name, tuple(ordered), kwargs, tuple(map(_anonymous, op.outputs))


def _anonymous(type_: ValueType | None) -> ValueType | None:
    return map_type(type_, lambda _: Ref(-1))


def _literal(arg: Arg) -> Hashable:
    """Returns an argument without the numbers of its values."""
    if isinstance(arg, Ref):
        return "%"
    return tuple(map(_literal, arg)) if isinstance(arg, tuple) else arg


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two values in the same place of both graphs.

    Attributes:
        a: the value in A.
        b: the value in B.
        user: the op or input of A that uses it, by its first value; None for an output.
        path: where in that op's arguments.
    """

    a: int
    b: int
    user: int | None = None
    path: str = ""


class Pairing:
    """Pairs the inputs, sizes and ops of two graphs.

    The order of inputs, ops and commutative operands depends on everything in a graph, so one change may change all of
    it. That is why nodes are paired by what they are computed from and what is computed from them, and not by their
    numbers: by their labels, the most telling first, and where several nodes have one label, next to paired nodes.

    Attributes:
        a: the nodes of A.
        b: those of B.
        to_b: for each paired node of A that of B.
        to_a: the other way round.
        only_a: ops that only A has.
        only_b: ops that only B has.
        rewired: values in one place of both graphs that are not paired with each other.
        outputs_a: outputs that only A has.
        outputs_b: outputs that only B has.
    """

    def __init__(self, a: Graph, b: Graph):
        self.a, self.b = Nodes(a), Nodes(b)
        self.to_b: dict[int, int] = {}
        self.to_a: dict[int, int] = {}
        interned: dict[Hashable, int] = {}
        self._labels = label_nodes(self.a, interned), label_nodes(self.b, interned)
        ends_a, ends_b = ({nodes.node_of[value] for value in nodes.graph.outputs} for nodes in (self.a, self.b))
        self._ways: list[tuple[int, int, int]] = []
        self._near = {(x, y) for x in ends_a for y in ends_b if x in self.a.op_at and y in self.b.op_at}
        self._pair_ops()
        self.only_a = [node for node in self.a.op_at if node not in self.to_b]
        self.only_b = [node for node in self.b.op_at if node not in self.to_a]
        self._settle(lambda value: value < len(a.inputs))
        self._settle(lambda value: value < a.first_result)
        self.outputs_a, self.outputs_b, ends = self._compare_outputs()
        self.rewired = [Meeting(*each) for place in self._list_places() for each in _zip_place(*place)]
        self.rewired += [met for met in ends if self._value_in_b(met.a) != met.b]

    def _pair_ops(self) -> None:
        """Pairs ops by each label in turn. By the last one, which all have, only those next to paired ones."""
        of_a, of_b = self._labels
        levels = len(next(iter(of_a.values()), ()))
        for level in range(levels):
            self._ways = [way for near in self._near for way in self._list_ways(*near, level)]
            heapify(self._ways)
            self._spread(level)
            groups, others = _group(self.a.op_at, of_a, level), _group(self.b.op_at, of_b, level)
            for label in sorted(groups, key=lambda label: len(groups[label])) if level < levels - 1 else ():
                for x, y in zip(groups[label], others.get(label, ()), strict=False):
                    self._pair(x, y, level)
                    self._spread(level)

    def _spread(self, level: int) -> None:
        """Pairs ops next to paired ones that have an equal label, the most alike first."""
        while self._ways:
            self._pair(*heappop(self._ways)[1:], level)

    def _pair(self, x: int, y: int, level: int) -> None:
        """Pairs two nodes if neither is paired. Those next to them are ways to go on."""
        if x in self.to_b or y in self.to_a:
            return
        self.to_b[x], self.to_a[y] = y, x
        for near_x, near_y in ((self.a.used, self.b.used), (self.a.users, self.b.users)):
            beside = defaultdict[str, list[int]](list)
            for label, node in near_y[y]:
                beside[label].append(node)
            for near in ((node, other) for label, node in near_x[x] for other in beside[label]):
                if near not in self._near and near[0] in self.a.op_at and near[1] in self.b.op_at:
                    self._near.add(near)
                    for way in self._list_ways(*near, level):
                        heappush(self._ways, way)

    def _list_ways(self, x: int, y: int, level: int) -> Iterator[tuple[int, int, int]]:
        """Yields two nodes if they may be paired by a label: the more alike they are, the smaller the first number."""
        free = x not in self.to_b and y not in self.to_a
        if free and self._labels[0][x][level] == self._labels[1][y][level]:
            yield -self._likeness(x, y), x, y

    def _likeness(self, x: int, y: int) -> int:
        """Returns how many labels two nodes share."""
        return sum(map(eq, self._labels[0][x], self._labels[1][y]))

    @property
    def has_replaced(self) -> bool:
        """True if ops of two names are paired."""
        ops = ((self.a.op(x), self.b.op(y)) for x, y in self.to_b.items())
        return any(a and b and a.name != b.name for a, b in ops)

    def _value_in_b(self, value: int) -> int | None:
        node = self.to_b.get(self.a.node_of[value])
        return None if node is None else node + self.a.result_index(value)

    def _list_places(self) -> Iterator[tuple[int, str, list[int], list[int]]]:
        """Yields for each place in a pair of ops, or of inputs' shapes, what is used there in one graph only."""
        for x, y in self.to_b.items():
            ops = self.a.op(x), self.b.op(y)
            if ops[0] and ops[1]:
                ordered = not all(op_traits(op.name).commutes for op in ops if op)
                sides = _list_used(self.a, ops[0], self.to_b, ordered), _list_used(self.b, ops[1], self.to_a, ordered)
            else:
                sides = _list_sizes(self.a, x), _list_sizes(self.b, y)
            for path in sides[0]:
                left, free = [*sides[0][path]], [*sides[1][path]]
                for value in sides[0][path]:
                    other = self._value_in_b(value)
                    if other in free:
                        left.remove(value)
                        free.remove(other)
                yield x, path, left, free

    def _settle(self, is_meant: Callable[[int], bool]) -> None:
        """Pairs inputs that met most often; of those, the ones that met fewest others; of those, the most alike."""
        met = ((a, b) for _, _, left, free in self._list_places() for a in left for b in free)
        votes = Counter(each for each in met if is_meant(each[0]) and self._are_leaves(*each))
        met_a, met_b = Counter(a for a, _ in votes), Counter(b for _, b in votes)
        ways = [(-n, min(met_a[a], met_b[b]), -self._likeness(a, b), a, b) for (a, b), n in votes.items()]
        for *_, a, b in sorted(ways):
            if a not in self.to_b and b not in self.to_a:
                self.to_b[a], self.to_a[b] = b, a

    def _are_leaves(self, x: int, y: int) -> bool:
        """True if two values are inputs, or if they are sizes."""
        a, b = self.a.graph, self.b.graph
        return y < b.first_result and (x < len(a.inputs)) == (y < len(b.inputs))

    def _compare_outputs(self) -> tuple[list[int], list[int], list[Meeting]]:
        """Returns the outputs that only A has, those that only B has, and those that are in each other's place."""
        others = set(self.b.graph.outputs)
        same = {value: self._value_in_b(value) for value in self.a.graph.outputs if self._value_in_b(value) in others}
        a = [value for value in self.a.graph.outputs if value not in same]
        b = [value for value in self.b.graph.outputs if value not in set(same.values())]
        common = min(len(a), len(b))
        pairs = ((x, y) for x, y in zip(a, b, strict=False) if self.a.node_of[x] in self.to_b)
        met = [Meeting(x, y) for x, y in pairs if self.b.node_of[y] in self.to_a]
        return a[common:], b[common:], met


def _group(nodes: Iterable[int], labels: Mapping[int, Sequence[Hashable]], level: int) -> dict[Hashable, list[int]]:
    found = defaultdict[Hashable, list[int]](list)
    for node in nodes:
        found[labels[node][level]].append(node)
    return found


def _list_used(nodes: Nodes, op: Op, paired: Mapping[int, int], ordered: bool) -> defaultdict[str, list[int]]:
    """Returns the values that an op uses, by their places. Ops that only one graph has are passed over."""
    places = defaultdict[str, list[int]](list)
    for path, value in argument_refs(op) if ordered else edges(op):
        places[path].append(_pass_unpaired(nodes, value, paired))
    return places


def _list_sizes(nodes: Nodes, value: int) -> defaultdict[str, list[int]]:
    """Returns the sizes in the shape of an input, by their dimensions."""
    type_ = type_of(nodes, value)
    shape = type_.shape if isinstance(type_, TensorType) else ()
    sizes = {f"size{place}": [size.index] for place, size in enumerate(shape) if isinstance(size, Ref)}
    return defaultdict(list, sizes)


def _zip_place(user: int, path: str, left: Sequence[int], free: Sequence[int]) -> Iterator[tuple[int, int, int, str]]:
    return ((a, b, user, path) for a, b in zip(left, free, strict=False))


def _pass_unpaired(nodes: Nodes, value: int, paired: Mapping[int, int]) -> int:
    """Returns a value, or what the op that only one graph has computes it from."""
    while (op := nodes.op(value)) is not None and nodes.node_of[value] not in paired and (uses := list(edges(op))):
        value = uses[0][1]
    return value


def pair_graphs(a: Mapping[str, str], b: Mapping[str, str]) -> Pairing:
    """Returns the pairing of the graphs of two keys, given the keys' ingredients.

    Raises:
        ValueError: if a graph cannot be read.
    """
    return _pair_texts(*(tuple((name, texts[name]) for name in GRAPH if name in texts) for texts in (a, b)))


@lru_cache(_REMEMBERED)
def _pair_texts(a: tuple[tuple[str, str], ...], b: tuple[tuple[str, str], ...]) -> Pairing:
    return Pairing(read_graph(dict(a)), read_graph(dict(b)))


def type_of(nodes: Nodes, value: int) -> ValueType | None:
    """Returns the type of a value; None for a size, and for an unused result."""
    op = nodes.op(value)
    if op is not None:
        return op.outputs[nodes.result_index(value)]
    return nodes.graph.inputs[value] if value < len(nodes.graph.inputs) else None
