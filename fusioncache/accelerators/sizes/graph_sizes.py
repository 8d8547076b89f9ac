"""Other sizes for a graph of Dynamo's: those of its symbols for which its guards hold, and arguments that have them.

Which guards these are decides nothing but whether what is made of such arguments is of any use: whatever the sizes,
Thunder derives the program that is right for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from fusioncache.transform.dynamo_graphs import is_graph

_MOST_ALIKE = 64
"""By which power of two, at most, a size and the one in its stead are divisible alike: attention may ask for that."""

type Values = Mapping[Any, int]
"""What each symbol is."""


def has_symbols(function: Any) -> bool:
    """Tells whether a function is a graph that Dynamo made for many sizes."""
    return is_graph(function) and any(map(_is_symbolic, chain.from_iterable(_read_sizes(function))))


def vary_sizes(graph: Any, args: Sequence[Any]) -> tuple[Any, ...] | None:
    """Returns arguments of other sizes for a graph. What has no symbols is the same.

    Args:
        graph: a ``torch.fx.GraphModule``.
        args: that it is called with.

    Returns:
        Arguments for which Dynamo's guards hold as well, with tensors that hold any numbers; None if nothing varies,
        or a symbol may have no other value.
    """
    import torch

    sizes = _read_sizes(graph)
    if len(sizes) != len(args):
        return None
    varying = [(size.node, arg) for each, arg in zip(sizes, args, strict=True) for size in each if _is_symbolic(size)]
    if not all(type(arg) in (int, torch.Tensor) for _, arg in varying):
        return None
    known = _read_symbols(sizes, args)
    if not known or not all(node.expr.free_symbols <= known.keys() for node, _ in varying):
        return None
    present = frozenset(chain.from_iterable(map(_list_sizes, args)))
    values = _choose_values(known, present, varying[0][0].shape_env)
    return None if values is None else tuple(_vary(*each, values) for each in zip(args, sizes, strict=True))


def _read_sizes(graph: Any) -> list[tuple[Any, ...]]:
    """Returns the sizes of each argument of a graph, symbols among them."""
    return [_list_sizes(node.meta.get("example_value")) for node in graph.graph.nodes if node.op == "placeholder"]


def _list_sizes(value: Any) -> tuple[Any, ...]:
    """Returns the sizes of an argument: of a tensor in each dimension, or an integer alone."""
    import torch

    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    return (value,) if isinstance(value, int | torch.SymInt) else ()


def _is_symbolic(size: Any) -> bool:
    import torch

    return isinstance(size, torch.SymInt)


def _read_symbols(sizes: Iterable[tuple[Any, ...]], args: Sequence[Any]) -> Values:
    """Returns the value of each symbol that is a size by itself."""
    return {
        size.node.expr: actual
        for each, arg in zip(sizes, args, strict=True)
        for size, actual in zip(each, _list_sizes(arg), strict=True)
        if _is_symbolic(size) and size.node.expr.is_Symbol
    }


def _choose_values(known: Values, present: frozenset[int], environment: Any) -> Values | None:
    """Returns another value for each symbol, which none of the sizes has that are present; None if one may have none.

    A length that is as large as a width would be another program, in which both are one.
    """
    values = dict(known)
    for symbol, actual in known.items():
        taken = {*present, *values.values()}
        others = [actual + step for step in _list_steps(actual)]
        fitting = (each for each in others if each > 1 and each not in taken)
        found = next((each for each in fitting if _holds(environment, {**values, symbol: each})), None)
        if found is None:
            return None
        values[symbol] = found
    return values


def _list_steps(size: int) -> tuple[int, ...]:
    """Returns how far from a size others may lie, first those that are divisible as it is."""
    alike = min(size & -size, _MOST_ALIKE)
    return (2 * alike, -2 * alike, alike, -alike, 2, -2, 1, -1)


def _holds(environment: Any, values: Values) -> bool:
    """Tells whether Dynamo's guards hold for these values, as far as they are about nothing else."""
    ranges = [(environment.var_to_range.get(symbol), value) for symbol, value in values.items()]
    if any(known is not None and value not in known for known, value in ranges):
        return False
    guards = [guard.expr for guard in environment.guards if guard.expr.free_symbols <= values.keys()]
    return all(_evaluate(each, values) for each in guards)


def _evaluate(expression: Any, values: Values) -> Any:
    """Returns an expression, or a condition, with these values: an integer, or whether it is true."""
    import sympy

    return expression.xreplace({symbol: sympy.Integer(value) for symbol, value in values.items()})


def _vary(arg: Any, sizes: tuple[Any, ...], values: Values) -> Any:
    """Returns an argument with other values for its symbols."""
    import torch

    if not any(map(_is_symbolic, sizes)):
        return arg
    shape = [int(_evaluate(each.node.expr, values)) if _is_symbolic(each) else each for each in sizes]
    if isinstance(arg, int):
        return shape[0]
    with torch.enable_grad():
        new = torch.empty(shape, dtype=arg.dtype, device=arg.device, requires_grad=arg.requires_grad)
        return new if arg.is_leaf else new.view_as(new)
