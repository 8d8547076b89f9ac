"""In what the arguments of two ops of one name differ, beside their values."""

from __future__ import annotations

from itertools import zip_longest

from fusioncache.explain.change import NONE, Change, ordinal
from fusioncache.explain.colours import Nodes
from fusioncache.explain.words import op_text
from fusioncache.ir import Arg, Const, Op, Ref
from fusioncache.ir.ops import RESIDUAL, op_traits

_NUMBERS = ("int", "float", "bool", "complex")


def argument_changes(nodes: Nodes, node: int, a: Op, b: Op) -> list[Change]:
    """What differs in the literals of an op, ``a``, and its like in the other graph, ``b``."""
    args_a, args_b = a.args, b.args
    if op_traits(a.name).commutes:
        args_a, args_b = _values_first(args_a), _values_first(args_b)
    where = op_text(nodes, node)
    changes = []
    for place, (x, y) in enumerate(zip_longest(args_a, args_b)):
        if _differ(x, y):
            at = a.args.index(x) if op_traits(a.name).commutes and x in a.args else place
            changes.append(_positional(a, at, x, y, where))
    names = dict.fromkeys([*dict(a.kwargs), *dict(b.kwargs)])
    for name in names:
        x, y = dict(a.kwargs).get(name), dict(b.kwargs).get(name)
        if _differ(x, y):
            changes.append(Change("attributes", f"an attribute, {name} of {where}", *_both(x, y)))
    return changes


def _positional(op: Op, place: int, x: Arg | None, y: Arg | None, where: str) -> Change:
    values = _both(x, y)
    if op.name == RESIDUAL:
        return Change("attributes", f"the dtype of the terms of {where}", *values)
    if any(isinstance(arg, Const) and arg.kind in _NUMBERS for arg in (x, y)):
        return Change("constants", f"a constant, the {ordinal(place + 1)} operand of {where}", *values)
    return Change("attributes", f"an attribute, the {ordinal(place + 1)} argument of {where}", *values)


def _values_first(args: tuple[Arg, ...]) -> tuple[Arg, ...]:
    return tuple(sorted(args, key=lambda arg: not isinstance(arg, Ref)))


def _differ(x: Arg | None, y: Arg | None) -> bool:
    if isinstance(x, tuple) and isinstance(y, tuple):
        return len(x) != len(y) or any(map(_differ, x, y))
    return not (isinstance(x, Ref) and isinstance(y, Ref)) and x != y


def _both(x: Arg | None, y: Arg | None) -> tuple[str, str]:
    shown = _text(x), _text(y)
    return shown if shown[0] != shown[1] else (_typed(x), _typed(y))


def _text(arg: Arg | None) -> str:
    if arg is None:
        return NONE
    if isinstance(arg, Ref):
        return "a value"
    if isinstance(arg, tuple):
        return f"({', '.join(_text(item) for item in arg)}{',' if len(arg) == 1 else ''})"
    return str(arg) if arg.kind in (*_NUMBERS, "str", "none") else arg.text


def _typed(arg: Arg | None) -> str:
    """With the type where the text alone does not tell two apart."""
    if isinstance(arg, tuple):
        return f"({', '.join(map(_typed, arg))})"
    return f"{arg.kind} {arg.text}" if isinstance(arg, Const) else "a value"
