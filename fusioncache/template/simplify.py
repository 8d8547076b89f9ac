"""Removes identities, duplicate ops and dead ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fusioncache.ir import Arg, Graph, Op, Ref, map_arg, map_type, operands, refs_in
from fusioncache.template.vocabulary import ADD, COMMUTATIVE, IDENTITY, NEVER_MERGED, products


def simplify(graph: Graph) -> Graph:
    """The same function with identities forwarded, each value computed once, and nothing computed in vain.

    Inputs and outputs keep their places.

    Bitwise the same: no op is replaced by another, and none is computed from other operands.
    """
    renamed: dict[int, int] = {value: value for value in range(graph.first_result)}
    seen: dict[Op, int] = {}
    kept: list[Op] = []
    commuting = Commuting(graph.first_result)
    number = graph.first_result
    outputs = set(graph.outputs)

    for op, first in graph.results():
        op = rename_operands(op, lambda index: Ref(renamed[index]))
        if op.name in IDENTITY and isinstance(op.args[0], Ref):
            leaves_as_it_came = op.args[0].index < graph.first_result and first in outputs
            if not leaves_as_it_came:
                renamed[first] = op.args[0].index
                continue
        signature = commuting.sorted(op)
        duplicate = None if op.name in NEVER_MERGED else seen.get(signature)
        target = number if duplicate is None else duplicate
        for position in range(len(op.outputs)):
            renamed[first + position] = target + position
        if duplicate is None:
            seen[signature] = number
            kept.append(op)
            commuting.define(op)
            number += len(op.outputs)

    return _without_dead_ops(
        Graph(graph.inputs, tuple(kept), tuple(renamed[value] for value in graph.outputs), graph.sizes)
    )


def _without_dead_ops(graph: Graph) -> Graph:
    live = set(graph.outputs)
    for op, first in reversed(list(graph.results())):
        if any(first + position in live for position in range(len(op.outputs))):
            live.update(index for _, index in operands(op))
    renamed = {value: Ref(value) for value in range(graph.first_result)}
    kept: list[Op] = []
    number = graph.first_result
    for op, first in graph.results():
        numbers = range(first, first + len(op.outputs))
        if not any(value in live for value in numbers):
            continue
        outputs = tuple(type_ if value in live else None for value, type_ in zip(numbers, op.outputs, strict=True))
        kept.append(rename_operands(replace(op, outputs=outputs), renamed.__getitem__))
        renamed.update({value: Ref(number + position) for position, value in enumerate(numbers)})
        number += len(op.outputs)
    return Graph(graph.inputs, tuple(kept), tuple(renamed[value].index for value in graph.outputs), graph.sizes)


def rename_operands(op: Op, rename: Callable[[int], Ref]) -> Op:
    """The op with each used value replaced by ``rename(index)``."""
    return Op(
        op.name,
        tuple(map_arg(arg, rename) for arg in op.args),
        tuple(map_type(type_, rename) for type_ in op.outputs),
        tuple((name, map_arg(arg, rename)) for name, arg in op.kwargs),
    )


class Commuting:
    """Knows of each op of a graph, defined in order, whether its two operands may change places without changing bits."""

    def __init__(self, inputs: int):
        self._product = [False] * inputs

    def define(self, op: Op) -> None:
        """Takes in the next op of the graph."""
        operand = any(self._product[index] for arg in op.args for _, index in refs_in(arg))
        self._product.extend([products(op.name, operand)] * len(op.outputs))

    def __call__(self, op: Op) -> bool:
        if op.name not in COMMUTATIVE or len(op.args) != 2 or op.kwargs:
            return False
        both_products = all(isinstance(arg, Ref) and self._product[arg.index] for arg in op.args)
        return not (op.name == ADD and both_products)

    def sorted(self, op: Op) -> Op:
        """The op with commuting operands sorted: values by number, then constants."""
        if not self(op):
            return op
        return Op(op.name, tuple(sorted(op.args, key=_rank)), op.outputs, op.kwargs)


def _rank(arg: Arg) -> tuple:
    return (0, arg.index, "") if isinstance(arg, Ref) else (1, 0, repr(arg))
