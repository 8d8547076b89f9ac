"""How alike two nodes of two graphs are: how many steps around them nothing differs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from operator import eq

from fusioncache.ir import Arg, Graph, Op, Ref, ValueType, map_type, operands
from fusioncache.ir.ops import op_traits

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


class Likeness:
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
