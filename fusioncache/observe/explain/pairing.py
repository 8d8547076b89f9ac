"""Which value of one graph is which value of another one that is nearly the same."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from operator import eq

from fusioncache.ir import Arg, Graph, Op, Ref, TensorType, ValueType, map_type, operands
from fusioncache.ir.graph import argument_refs
from fusioncache.ir.keys import GRAPH
from fusioncache.ir.ops import op_traits
from fusioncache.template.text import read_graph

_ROUNDS = 4
_WHOLE = 16
"""The weight of two values that are computed in the same way, down to the inputs: more than that of all rounds."""


class Nodes:
    """The inputs, sizes and ops of a graph. A node's number is that of its value, an op's that of its first result."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.op_at: dict[int, tuple[int, Op]] = {}
        self.node_of = {value: value for value in range(graph.first_result)}
        for number, (op, first) in enumerate(graph.results(), 1):
            self.op_at[first] = (number, op)
            self.node_of.update({first + index: first for index in range(len(op.outputs))})

    def op(self, value: int) -> Op | None:
        """Returns the op that computes a value; None if it is an input or a size."""
        return self.op_at.get(self.node_of[value], (0, None))[1]

    def number(self, value: int) -> int:
        """Returns which op, from 1, computes a value; 0 if it is an input or a size."""
        return self.op_at.get(self.node_of[value], (0, None))[0]

    def result_index(self, value: int) -> int:
        """Returns which of its op's results a value is, from 0."""
        return value - self.node_of[value]


class NodeLikeness:
    """Compares nodes of two graphs by their neighbourhoods, in full and without types and literals. Linear."""

    def __init__(self, a: Nodes, b: Nodes):
        interned: dict[Hashable, int] = {}
        self._a, self._b = a, b
        self._rounds = [
            (_neighbourhoods(a, full, interned), _neighbourhoods(b, full, interned)) for full in (True, False)
        ]
        self._whole = _below(a, interned), _below(b, interned)

    def __call__(self, a: int, b: int) -> int:
        """Returns the more, the more alike two values are; 0 if they are of two sorts."""
        node_a, node_b = self._a.node_of[a], self._b.node_of[b]
        if self._a.result_index(a) != self._b.result_index(b):
            return 0
        # Each round's number tells those of the rounds before, so that where two are equal, all before are.
        alike = sum(sum(map(eq, of_a[node_a], of_b[node_b])) for of_a, of_b in self._rounds)
        return alike + _WHOLE * self.same(a, b)

    def same(self, a: int, b: int) -> bool:
        """Returns whether both are computed in the same way, down to the inputs' types."""
        whole_a, whole_b = self._whole
        same = whole_a[self._a.node_of[a]] == whole_b[self._b.node_of[b]]
        return same and self._a.result_index(a) == self._b.result_index(b)


def edges(op: Op) -> Iterator[tuple[str, int]]:
    """Returns each value that an op uses, with its path. The two operands of a commutative op have one path."""
    for path, value in operands(op):
        yield ("operand" if op_traits(op.name).commutes and path in ("0", "1") else path), value


def _neighbourhoods(nodes: Nodes, full: bool, interned: dict[Hashable, int]) -> dict[int, list[int]]:
    """Returns for each node a number for what is around it, by how many steps away that may be."""
    histories = {node: [_number(label, interned)] for node, label in _labels(nodes, full).items()}
    around: dict[int, list[tuple[str, int]]] = {node: [] for node in histories}
    for node, (_, op) in nodes.op_at.items():
        for path, used in edges(op):
            label = f"{path}.{nodes.result_index(used)}"
            around[node].append((f"uses {label}", nodes.node_of[used]))
            around[nodes.node_of[used]].append((f"used {label}", node))
    for _ in range(_ROUNDS - 1):
        latest = {node: history[-1] for node, history in histories.items()}
        for node, history in histories.items():
            near = tuple(sorted((label, latest[other]) for label, other in around[node]))
            history.append(_number((history[-1], near), interned))
    return histories


def _below(nodes: Nodes, interned: dict[Hashable, int]) -> dict[int, int]:
    """For each node a number for all that it is computed from."""
    numbers: dict[int, int] = {}
    for node, label in _labels(nodes, True).items():
        op = nodes.op(node)
        uses = edges(op) if op else ()
        used = sorted((path, numbers[nodes.node_of[value]], nodes.result_index(value)) for path, value in uses)
        numbers[node] = _number((label, tuple(used)), interned)
    return numbers


def _labels(nodes: Nodes, full: bool) -> dict[int, Hashable]:
    """What a node is by itself, in dependency order: in full, or no more than its op's name."""
    graph = nodes.graph
    labels: dict[int, Hashable] = {
        number: ("input", _anonymous(type_) if full else "") for number, type_ in enumerate(graph.inputs)
    }
    labels |= dict.fromkeys(range(len(graph.inputs), graph.first_result), ("size",))
    return labels | {first: describe_op(op) if full else (op.name,) for first, (_, op) in nodes.op_at.items()}


def describe_op(op: Op) -> Hashable:
    """Returns all about an op but which values it uses, and the order of a commutative op's arguments."""
    args = [_literal(arg) for arg in op.args]
    ordered = sorted(map(repr, args)) if op_traits(op.name).commutes else args
    kwargs = tuple((name, _literal(arg)) for name, arg in op.kwargs)
    return op.name, tuple(ordered), kwargs, tuple(map(_anonymous, op.outputs))


def _anonymous(type_: ValueType | None) -> ValueType | None:
    return map_type(type_, lambda _: Ref(-1))


def _literal(arg: Arg) -> Hashable:
    """An argument without the numbers of its values."""
    if isinstance(arg, Ref):
        return "%"
    return tuple(map(_literal, arg)) if isinstance(arg, tuple) else arg


def _number(item: Hashable, interned: dict[Hashable, int]) -> int:
    return interned.setdefault(item, len(interned))


_SETTLED = 1 << 20
"""The weight of two values that were paired before."""

_LOOKED_AT = 8
"""How many commutative ops are looked at for one whose operands can be told apart."""

_REMEMBERED = 16
"""How many pairings a process remembers, so that no two graphs are paired twice for one answer."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two values that the walk found at the same point of both graphs.

    Attributes:
        a: the value in A.
        b: the value in B.
        user: the op of A that uses it, by its first result; None for an output.
        path: where in that op's arguments.
    """

    a: int
    b: int
    user: int | None = None
    path: str = ""


class Pairing:
    """Walks two graphs at once, from the outputs up, and passes over ops that only one of them has.

    The order of inputs, ops and commutative operands depends on everything in a graph, so one change may change all of
    it. That is why values are paired by what is around them, and not by their numbers. Linear, but for the outputs.

    Attributes:
        a: the nodes of A.
        b: those of B.
        to_b: for each paired node of A that of B.
        to_a: the other way round.
        only_a: ops that only A has.
        only_b: ops that only B has.
        replaced: meetings of two different ops, or of an op and an input.
        rewired: meetings of a value with one that it is not paired with.
        swapped: commutative ops, of A, whose operands were paired crosswise.
        exchanged: other ops, of A, whose operands are those of B's in another order.
        outputs_a: outputs that only A has.
        outputs_b: outputs that only B has.
    """

    def __init__(self, a: Graph, b: Graph):
        self.a, self.b = Nodes(a), Nodes(b)
        self.to_b: dict[int, int] = {}
        self.to_a: dict[int, int] = {}
        self.only_a: list[int] = []
        self.only_b: list[int] = []
        self.replaced: list[Meeting] = []
        self.rewired: list[Meeting] = []
        self.swapped: list[int] = []
        self.exchanged: list[int] = []
        self._like = NodeLikeness(self.a, self.b)
        self._met: deque[Meeting] = deque()
        self._undecided: deque[tuple[int, int]] = deque()
        self._inputs: list[Meeting] = []
        self._votes: Counter[tuple[int, int]] = Counter()
        self._voted_a: set[int] = set()
        self._voted_b: set[int] = set()
        self.outputs_a, self.outputs_b = self._begin(a.outputs, b.outputs)
        self._begin(_sinks(self.a), _sinks(self.b))
        self._walk()
        self._settle_inputs()
        self._walk()

    def _walk(self) -> None:
        while self._met or self._undecided:
            if self._met:
                self._meet(self._met.popleft())
            else:
                self._decide()

    def _begin(self, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """Pairs outputs, the most alike first. Returns those that are left over."""
        ways = [(-self._like(x, y), i, j) for i, x in enumerate(a) for j, y in enumerate(b)]
        left_a, left_b = dict(enumerate(a)), dict(enumerate(b))
        for _, i, j in sorted(ways):
            if i in left_a and j in left_b:
                self._met.append(Meeting(left_a.pop(i), left_b.pop(j)))
        return list(left_a.values()), list(left_b.values())

    def _meet(self, met: Meeting) -> None:
        node_a, node_b = self.a.node_of[met.a], self.b.node_of[met.b]
        if node_a < len(self.a.graph.inputs) and node_b < len(self.b.graph.inputs):
            self._inputs.append(met)
            self._votes[node_a, node_b] += 1
            self._voted_a.add(node_a)
            self._voted_b.add(node_b)
            return
        same_result = self.a.result_index(met.a) == self.b.result_index(met.b)
        if node_a in self.to_b or node_b in self.to_a or not same_result:
            if self.to_b.get(node_a) != node_b or not same_result:
                self.rewired.append(met)
            return
        if self._pass_over(met):
            return
        self.to_b[node_a], self.to_a[node_b] = node_b, node_a
        op_a, op_b = self.a.op(met.a), self.b.op(met.b)
        if op_a and op_b:
            if op_a.name != op_b.name:
                self.replaced.append(met)
            self._go_on(node_a, node_b, op_a, op_b)
        elif op_a or op_b:
            self.replaced.append(met)

    def _pass_over(self, met: Meeting) -> bool:
        """Passes over one of the two if it is an op that the other graph lacks, and returns whether it did."""
        op_a, op_b = self.a.op(met.a), self.b.op(met.b)
        past_a = max(((self._like(used, met.b), path, used) for path, used in _uses(op_a)), default=None)
        past_b = max(((self._like(met.a, used), path, used) for path, used in _uses(op_b)), default=None)
        here = self._likeness_here(met, op_a, op_b)
        score_a, score_b = past_a[0] if past_a else 0, past_b[0] if past_b else 0
        if max(score_a, score_b) <= here:
            return False
        if past_a and score_a >= score_b:
            self.only_a.append(self.a.node_of[met.a])
            self._met.append(Meeting(past_a[2], met.b, self.a.node_of[met.a], past_a[1]))
        elif past_b:
            self.only_b.append(self.b.node_of[met.b])
            self._met.append(Meeting(met.a, past_b[2], met.user, met.path))
        return True

    def _likeness_here(self, met: Meeting, op_a: Op | None, op_b: Op | None) -> float:
        """Returns how much speaks for pairing two values as they stand."""
        if not (op_a and op_b):
            return self._like(met.a, met.b)
        operands_alike = [self._like(x, y) for (_, x), (_, y) in zip(_uses(op_a), _uses(op_b), strict=False)]
        mean = sum(operands_alike) / max(len(_uses(op_a)), len(_uses(op_b)), 1)
        return max(self._like(met.a, met.b), mean)

    def _go_on(self, node_a: int, node_b: int, op_a: Op, op_b: Op) -> None:
        uses_a, uses_b = _uses(op_a), _uses(op_b)
        if op_traits(op_a.name).commutes and op_traits(op_b.name).commutes and len(uses_a) == len(uses_b):
            if len(uses_a) == 2:
                self._undecided.append((node_a, node_b))
                return
            paths = [path for path, _ in uses_a]
        else:
            shared = dict(uses_b)
            paths = [path for path, _ in uses_a if path in shared]
            uses_a, uses_b = [use for use in uses_a if use[0] in shared], [(path, shared[path]) for path in paths]
            if op_a.name == op_b.name and self._is_exchange(uses_a, uses_b):
                self.exchanged.append(node_a)
                uses_b = uses_b[::-1]
        for path, (_, x), (_, y) in zip(paths, uses_a, uses_b, strict=True):
            self._met.append(Meeting(x, y, node_a, path))

    def _is_exchange(self, a: list[tuple[str, int]], b: list[tuple[str, int]]) -> bool:
        """Returns whether the operands are two that differ, and the same two the other way round."""
        if len(a) != 2 or self._like.same(a[0][1], b[0][1]) or self._like.same(a[1][1], b[1][1]):
            return False
        return self._like.same(a[0][1], b[1][1]) and self._like.same(a[1][1], b[0][1])

    def _settle_inputs(self) -> None:
        """Pairs inputs that met most often; of those, the ones that met fewest others; of those, the most alike."""
        met_a, met_b = Counter(a for a, _ in self._votes), Counter(b for _, b in self._votes)
        ways = [(-n, min(met_a[a], met_b[b]), -self._like(a, b), a, b) for (a, b), n in self._votes.items()]
        for *_, a, b in sorted(ways):
            if a not in self.to_b and b not in self.to_a:
                self.to_b[a], self.to_a[b] = b, a
                self._meet_sizes(a, b)
        self.rewired += [met for met in self._inputs if self.to_b.get(met.a) != met.b]

    def _meet_sizes(self, a: int, b: int) -> None:
        type_a, type_b = type_of(self.a, a), type_of(self.b, b)
        if isinstance(type_a, TensorType) and isinstance(type_b, TensorType):
            for dimension, (x, y) in enumerate(zip(type_a.shape, type_b.shape, strict=False)):
                if isinstance(x, Ref) and isinstance(y, Ref):
                    self._met.append(Meeting(x.index, y.index, a, f"size{dimension}"))

    def _decide(self) -> None:
        """Pairs the operands of a commutative op: one where it is clear how, if there is one in sight."""
        sight = list(islice(self._undecided, _LOOKED_AT))
        gains = [self._gain(*pair) for pair in sight]
        best = max(range(len(sight)), key=lambda index: (abs(gains[index]), -index))
        del self._undecided[best]
        node_a, node_b = sight[best]
        (path1, a1), (path2, a2) = _uses(self.a.op_at[node_a][1])
        (_, b1), (_, b2) = _uses(self.b.op_at[node_b][1])
        if gains[best] > 0:
            b1, b2 = b2, b1
            self.swapped.append(node_a)
        self._met += [Meeting(a1, b1, node_a, path1), Meeting(a2, b2, node_a, path2)]

    def _gain(self, node_a: int, node_b: int) -> int:
        """Returns how much better it is to pair the operands crosswise."""
        (_, a1), (_, a2) = _uses(self.a.op_at[node_a][1])
        (_, b1), (_, b2) = _uses(self.b.op_at[node_b][1])
        return self._fit(a1, b2) + self._fit(a2, b1) - self._fit(a1, b1) - self._fit(a2, b2)

    def _fit(self, a: int, b: int) -> int:
        node_a, node_b = self.a.node_of[a], self.b.node_of[b]
        settled = (node_a in self.to_b or node_a in self._voted_a) + (node_b in self.to_a or node_b in self._voted_b)
        if self.to_b.get(node_a) == node_b or (node_a, node_b) in self._votes:
            return _SETTLED + self._like(a, b)
        return self._like(a, b) - settled * _SETTLED


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


def _uses(op: Op | None) -> list[tuple[str, int]]:
    """Returns the values among an op's arguments, each with its path."""
    return list(argument_refs(op)) if op else []


def _sinks(nodes: Nodes) -> tuple[int, ...]:
    """Returns the ops whose results are unused: those with an effect."""
    used = {nodes.node_of[value] for value in nodes.graph.outputs}
    used |= {nodes.node_of[value] for _, op in nodes.op_at.values() for _, value in operands(op)}
    return tuple(node for node in nodes.op_at if node not in used)
