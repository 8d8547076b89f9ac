"""In what two nodes of two graphs differ by themselves: the types of values, and the literals of an op."""

from __future__ import annotations

from itertools import zip_longest

from fusioncache.ir import Arg, Const, Op, Ref, TensorType, ValueType
from fusioncache.ir.ops import RESIDUAL, op_traits
from fusioncache.observe.explain.change import NONE, Change, name_op, write_ordinal
from fusioncache.observe.explain.likeness import Nodes
from fusioncache.template.text import NUMBERS

SIZE_OF_DIMENSION = "size of dimension "

Aspect = tuple[str, str, str]
"""The name of what differs, and both values."""


def compare_types(a: ValueType | None, b: ValueType | None) -> list[Aspect]:
    """Returns what differs between two types of values: ``dtype``, ``rank``, ``size of dimension 0``, and so on.

    All symbolic sizes are alike.
    """
    if not (isinstance(a, TensorType) and isinstance(b, TensorType)):
        return [("type", _type_text(a), _type_text(b))] if a != b else []
    found = [(name, x, y) for name, x, y in (("dtype", a.dtype, b.dtype), ("device", a.device, b.device)) if x != y]
    return found + _compare_shapes(_size_texts(a), _size_texts(b))


def _compare_shapes(a: list[str], b: list[str]) -> list[Aspect]:
    if len(a) != len(b):
        return [("rank", str(len(a)), str(len(b)))]
    differing = [dimension for dimension, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    if len(differing) == 1:
        dimension = differing[0]
        return [(f"{SIZE_OF_DIMENSION}{dimension}", a[dimension], b[dimension])]
    return [("shape", _shape_text(a), _shape_text(b))] if differing else []


def _size_texts(type_: TensorType) -> list[str]:
    return ["symbolic" if isinstance(size, Ref) else str(size) for size in type_.shape]


def _shape_text(sizes: list[str]) -> str:
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _type_text(type_: ValueType | None) -> str:
    if type_ is None:
        return NONE
    return "a tensor" if isinstance(type_, TensorType) else str(type_)


def compare_arguments(nodes: Nodes, node: int, a: Op, b: Op) -> list[Change]:
    """Returns what differs in the literals of two ops of one name: A's, which is ``node`` of ``nodes``, and B's."""
    where, commutes = name_op(nodes, node), op_traits(a.name).commutes
    args_a, args_b = (_values_first(op.args) if commutes else op.args for op in (a, b))
    kwargs_a, kwargs_b = dict(a.kwargs), dict(b.kwargs)
    changes = []
    for index, (x, y) in enumerate(zip_longest(args_a, args_b)):
        if _differ(x, y):
            own = a.args.index(x) if commutes and x in a.args else index
            changes.append(_explain_positional(a, own, x, y, where))
    for name in kwargs_a | kwargs_b:
        x, y = kwargs_a.get(name), kwargs_b.get(name)
        if _differ(x, y):
            changes.append(Change("attributes", f"an attribute, {name} of {where}", *_arg_texts(x, y)))
    return changes


def _explain_positional(op: Op, index: int, x: Arg | None, y: Arg | None, where: str) -> Change:
    values = _arg_texts(x, y)
    if op.name == RESIDUAL:
        return Change("attributes", f"the dtype of the terms of {where}", *values)
    if any(isinstance(arg, Const) and arg.kind in NUMBERS for arg in (x, y)):
        return Change("constants", f"a constant, the {write_ordinal(index + 1)} operand of {where}", *values)
    return Change("attributes", f"an attribute, the {write_ordinal(index + 1)} argument of {where}", *values)


def _values_first(args: tuple[Arg, ...]) -> tuple[Arg, ...]:
    return tuple(sorted(args, key=lambda arg: not isinstance(arg, Ref)))


def _differ(x: Arg | None, y: Arg | None) -> bool:
    if isinstance(x, tuple) and isinstance(y, tuple):
        return len(x) != len(y) or any(map(_differ, x, y))
    return not (isinstance(x, Ref) and isinstance(y, Ref)) and x != y


def _arg_texts(x: Arg | None, y: Arg | None) -> tuple[str, str]:
    texts = _arg_text(x), _arg_text(y)
    return texts if texts[0] != texts[1] else (_typed_text(x), _typed_text(y))


def _arg_text(arg: Arg | None) -> str:
    if arg is None:
        return NONE
    if isinstance(arg, Ref):
        return "a value"
    if isinstance(arg, tuple):
        return f"({', '.join(_arg_text(item) for item in arg)}{',' if len(arg) == 1 else ''})"
    return str(arg) if arg.kind in (*NUMBERS, "str", "none") else arg.text


def _typed_text(arg: Arg | None) -> str:
    """Returns an argument with its type, for where the text alone does not tell two apart."""
    if isinstance(arg, tuple):
        return f"({', '.join(map(_typed_text, arg))})"
    return f"{arg.kind} {arg.text}" if isinstance(arg, Const) else "a value"
