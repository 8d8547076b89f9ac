"""A graph in two: what computes, and the views of its inputs and results that come last.

nvFuser never puts such a view into a kernel where it can be an alias. It marks where it begins, and a definition with
such a mark is taken apart into single operations that are merged again, each candidate tried with every scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from fusioncache.ir import Graph, Op, Ref
from fusioncache.ir.graph import argument_refs, map_arg
from fusioncache.ir.ops import CONVERT, op_traits


@dataclass(frozen=True, slots=True)
class Part:
    """Some operations of a graph as one of its own, and which of that graph's values its inputs and outputs are."""

    graph: Graph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def split_views(graph: Graph) -> tuple[Part | None, Part | None]:
    """Returns what computes, and the views that come last; None for one that is empty. The graph has no sizes."""
    results = list(graph.results())
    last: set[int] = set()
    users: dict[int, list[int]] = {}
    for number, (op, _) in enumerate(results):
        for _, value in argument_refs(op):
            users.setdefault(value, []).append(number)
    for number, (op, first) in reversed(list(enumerate(results))):
        uses = (user for value in range(first, first + len(op.outputs)) for user in users.get(value, ()))
        if (op_traits(op.name).shape_only or _is_identity(graph, op)) and last.issuperset(uses):
            last.add(number)
    made = {value for number in last for value in _values(*results[number])}
    wanted = {value for number in last for _, value in argument_refs(results[number][0])} | set(graph.outputs)
    others = set(range(len(results))) - last
    core_outputs = sorted(value for number in others for value in _values(*results[number]) if value in wanted)
    core = _extract(graph, others, core_outputs) if others else None
    return core, _extract(graph, last, sorted(made & set(graph.outputs))) if last else None


def _is_identity(graph: Graph, op: Op) -> bool:
    """True if an operation converts to the type that its operand has: nvFuser makes an alias of it."""
    operand = op.args[0] if op.name == CONVERT else None
    return isinstance(operand, Ref) and _types(graph)[operand.index] == op.outputs[0]


def _types(graph: Graph) -> dict[int, Any]:
    """Returns the type of each value."""
    types: dict[int, Any] = dict(enumerate(graph.inputs))
    return types | {first + place: type_ for op, first in graph.results() for place, type_ in enumerate(op.outputs)}


def _values(op: Op, first: int) -> range:
    return range(first, first + len(op.outputs))


def _extract(graph: Graph, numbers: Set[int], outputs: Sequence[int]) -> Part:
    """Returns these operations as a graph, whose inputs are the values that they use and do not make."""
    chosen = [result for number, result in enumerate(graph.results()) if number in numbers]
    made = [value for op, first in chosen for value in _values(op, first)]
    used = dict.fromkeys(value for op, _ in chosen for _, value in argument_refs(op))
    inputs = sorted(value for value in used if value not in set(made))
    new = {value: number for number, value in enumerate((*inputs, *made))}
    types = _types(graph)

    def rename(value: int) -> Ref:
        return Ref(new[value])

    ops = tuple(
        replace(
            op,
            args=tuple(map_arg(arg, rename) for arg in op.args),
            kwargs=tuple((name, map_arg(arg, rename)) for name, arg in op.kwargs),
        )
        for op, _ in chosen
    )
    part = Graph(tuple(types[value] for value in inputs), ops, tuple(new[value] for value in outputs))
    return Part(part, tuple(inputs), tuple(outputs))


def compile_parts(
    graph: Graph, args: Sequence[Any], compile_core: Callable[[Graph, Sequence[Any]], Callable[..., Sequence[Any]]]
) -> Callable[..., Sequence[Any]]:
    """Compiles what computes, and makes the views by torch. Returns a function of the whole graph's arguments."""
    from fusioncache.backends.eager import Eager

    core, views = split_views(graph)
    run_core = core and compile_core(core.graph, [args[value] for value in core.inputs])
    run_views: Any = None

    def run(args: Sequence[Any]) -> list[Any]:
        nonlocal run_views
        values = dict(enumerate(args))
        if core and run_core:
            values |= zip(core.outputs, run_core([values[value] for value in core.inputs]), strict=True)
        if views:
            given = [values[value] for value in views.inputs]
            run_views = run_views or Eager().compile(views.graph, given)
            values |= zip(views.outputs, run_views(given), strict=True)
        return [values[value] for value in graph.outputs]

    run(args)
    return run
