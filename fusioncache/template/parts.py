"""A graph cut into two: for a compiler that rejects the whole, and may take each half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from fusioncache.ir import Graph, Ref, TensorType, ValueType, operands
from fusioncache.template.writer import renumber

_MIDDLE = 0.25
"""A cut leaves at least this part of the operations on either side."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some operations of a graph, as a graph of their own.

    Attributes:
        graph: the operations.
        inputs: for each of its inputs, the number of the value in the whole.
        outputs: for each of its outputs, the number of the value in the whole.
    """

    graph: Graph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def cut(graph: Graph) -> int | None:
    """Returns after how many operations a graph is cut in two; None if it has fewer than two, or symbolic sizes.

    Of the places around the middle it is the one over which the fewest bytes pass. Linear in the operations.
    """
    count = len(graph.ops)
    if count < 2 or graph.sizes:
        return None
    passing = _count_passing_bytes(graph)
    least, most = max(1, int(count * _MIDDLE)), min(count - 1, int(count * (1 - _MIDDLE)))
    return min(range(least, max(least, most) + 1), key=lambda place: (passing[place], abs(2 * place - count)))


def take(graph: Graph, start: int, stop: int) -> Part:
    """Returns the operations of a graph from one place to another.

    Its inputs are what these operations use of the graph's inputs and of earlier results, in order of their numbers.
    Its outputs are what later operations use of their results, or the graph returns.

    Args:
        graph: without symbolic sizes.
        start: the first operation.
        stop: the first one behind.
    """
    firsts = [first for _, first in graph.results()]
    ops = graph.ops[start:stop]
    own = {first + place for op, first in zip(ops, firsts[start:stop], strict=True) for place in range(len(op.outputs))}
    used = sorted({index for op in ops for _, index in operands(op)} - own)
    wanted = sorted(own & ({index for op in graph.ops[stop:] for _, index in operands(op)} | set(graph.outputs)))
    numbers = {number: place for place, number in enumerate([*used, *sorted(own)])}

    types = _list_types(graph)
    inputs = [type_ for number in used if (type_ := types[number]) is not None]
    part = renumber(lambda number: Ref(numbers[number]), inputs, ops, wanted)
    return Part(part, tuple(used), tuple(wanted))


def _list_types(graph: Graph) -> Sequence[ValueType | None]:
    return [*graph.inputs, *(type_ for op in graph.ops for type_ in op.outputs)]


def _count_passing_bytes(graph: Graph) -> list[int]:
    """Returns for each place the bytes of the results before it that are used behind it."""
    last = {index: place for place, op in enumerate(graph.ops) for _, index in operands(op)}
    changes = [0] * (len(graph.ops) + 1)
    for place, (op, first) in enumerate(graph.results()):
        for number, type_ in enumerate(op.outputs, first):
            if number in last and isinstance(type_, TensorType):
                changes[place + 1] += type_.bytes
                changes[last[number] + 1] -= type_.bytes
    return list(accumulate(changes))
