"""The changes between two canonical graphs: the root changes, without those that follow from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from fusioncache.ir import Arg, Const, Op, Ref, TensorType, ValueType, operands
from fusioncache.ir.graph import argument_refs
from fusioncache.ir.ops import RESIDUAL, op_traits
from fusioncache.observe.explain.pairing import Nodes, Pairing, type_of
from fusioncache.template.text import NUMBERS, type_text

NONE = "none"
"""The text for a missing value."""

_LONGEST = 60
_BEFORE = 20
"""Number of characters of a long value that are shown before its first difference."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One change between two keys, A and B.

    Attributes:
        ingredient: the name of the ingredient that differs.
        subject: what differs, in words: ``a constant, operand 2 of op 3 (mul)``.
        a: A's value.
        b: B's value.
        op: the number, from 1, of the op that differs: A's, or B's if only B has it; None if it is not about an op.
    """

    ingredient: str
    subject: str
    a: str
    b: str
    op: int | None = None

    def to_dict(self) -> dict[str, str | int | None]:
        """Returns the change as JSON."""
        return {"ingredient": self.ingredient, "place": self.subject, "a": self.a, "b": self.b, "op": self.op}


def join_words(items: Sequence[str], word: str = "and") -> str:
    """Returns ``a``, ``a and b``, or ``a, b and c``."""
    return f" {word} ".join(filter(None, (", ".join(items[:-1]), items[-1])))


def write_difference(subject: str, values: str, others: int) -> str:
    """Returns a sentence about the first difference of two things, its values, and the number of other differences."""
    more = f", and in {others} other {'thing' if others == 1 else 'things'}" if others else ""
    return f"They differ in {subject}: {values}{more}."


def shorten_values(a: str, b: str, longest: int = _LONGEST) -> tuple[str, str]:
    """Returns two values; if one is longer than ``longest``, both are cut around their first difference."""
    if max(len(a), len(b)) <= longest:
        return a, b
    pairs = enumerate(zip(a, b, strict=False))
    first = next((position for position, (x, y) in pairs if x != y), min(len(a), len(b)))
    start = max(first - _BEFORE, 0)
    return _cut(a, start, longest), _cut(b, start, longest)


def _cut(text: str, start: int, longest: int) -> str:
    part = text[start : start + longest]
    return f"{'...' if start else ''}{part}{'...' if start + longest < len(text) else ''}"


def name_op(nodes: Nodes, node: int) -> str:
    """Returns an op with its number, from 1: ``op 3 (mul)``."""
    return f"op {nodes.numbers[node]} ({shorten_name(nodes.op_at[node])})"


def name_value(nodes: Nodes, value: int) -> str:
    """Returns the origin of a value: ``%0`` for an input, else its op."""
    node = nodes.node_of[value]
    if node not in nodes.op_at:
        return f"%{value}"
    which = f"result {nodes.result_index(value) + 1} of " if len(nodes.op_at[node].outputs) > 1 else ""
    return which + name_op(nodes, node)


def shorten_name(op: Op) -> str:
    """Returns an op's name without the name of its library."""
    return op.name.rpartition(".")[2]


def shorten_names(a: Op, b: Op) -> tuple[str, str]:
    """Returns two ops' names, shortened if they still differ then."""
    short = shorten_name(a), shorten_name(b)
    return short if short[0] != short[1] else (a.name, b.name)


SIZE_OF_DIMENSION = "size of dimension "

Aspect = tuple[str, str, str]
"""The name of a property that differs, and both values."""


def compare_types(a: ValueType, b: ValueType) -> list[Aspect]:
    """Returns the differences of two value types: ``dtype``, ``rank``, ``size of dimension 0``, and so on.

    All symbolic sizes count as equal.
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


def _type_text(type_: ValueType) -> str:
    return "a tensor" if isinstance(type_, TensorType) else str(type_)


def compare_arguments(nodes: Nodes, node: int, a: Op, b: Op) -> list[KeyChange]:
    """Returns the changes of literals between two ops of one name: A's, which is ``node`` of ``nodes``, and B's."""
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
            changes.append(KeyChange("attributes", f"an attribute, {name} of {where}", *_arg_texts(x, y)))
    return changes


def _explain_positional(op: Op, index: int, x: Arg | None, y: Arg | None, where: str) -> KeyChange:
    values = _arg_texts(x, y)
    if op.name == RESIDUAL:
        return KeyChange("attributes", f"the dtype of the terms of {where}", *values)
    if any(isinstance(arg, Const) and arg.kind in NUMBERS for arg in (x, y)):
        return KeyChange("constants", f"a constant, operand {index + 1} of {where}", *values)
    return KeyChange("attributes", f"an attribute, argument {index + 1} of {where}", *values)


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
    """Returns an argument with its type, for arguments whose texts are equal."""
    if isinstance(arg, tuple):
        return f"({', '.join(map(_typed_text, arg))})"
    return f"{arg.kind} {arg.text}" if isinstance(arg, Const) else "a value"


def find_graph_changes(pairing: Pairing) -> tuple[KeyChange, ...]:
    """Returns the changes between two graphs, those of inputs first; none if they are the same function."""
    inputs = _InputChanges(pairing)
    found = _find_lonely_ops(pairing, inputs)
    for node_a, node_b in pairing.a.partner.items():
        found += _look_inside(pairing, inputs, node_a, node_b)
    if not found and not inputs.changes:
        found = [_explain_operands(pairing, node) for node in pairing.rewired]
    ordered = sorted(found, key=lambda change: change.op or 0)
    return (*inputs.changes, *ordered, *_find_outputs(pairing))


def _find_lonely_ops(pairing: Pairing, inputs: _InputChanges) -> list[KeyChange]:
    """Returns the ops that only one graph has, without those that may follow from changed types of inputs."""
    a, b = pairing.a, pairing.b
    only_a, only_b = a.alone, b.alone
    if inputs.changes:
        only_a = [node for node in only_a if not op_traits(a.op_at[node].name).follows_types]
        only_b = [node for node in only_b if not op_traits(b.op_at[node].name).follows_types]
    found = [KeyChange("ops", "an op", name_op(a, node), NONE, a.numbers[node]) for node in only_a]
    return found + [KeyChange("ops", "an op", NONE, name_op(b, node), b.numbers[node]) for node in only_b]


def _look_inside(pairing: Pairing, inputs: _InputChanges, node_a: int, node_b: int) -> list[KeyChange]:
    """Returns the changes of one op that both graphs have: its name, literals, or unexplained types of its results."""
    op_a, op_b = pairing.a.op(node_a), pairing.b.op(node_b)
    if op_a is None or op_b is None:
        return []
    if op_a.name != op_b.name:
        number = pairing.a.numbers[node_a]
        return [KeyChange("ops", f"op {number}", *shorten_names(op_a, op_b), number)]
    as_before = _operand_types(pairing.a, op_a) == _operand_types(pairing.b, op_b)
    # An op without operands gets its attributes, such as a shape, from the inputs.
    follows = not as_before or (bool(inputs.changes) and not list(operands(op_a)))
    changes = compare_arguments(pairing.a, node_a, op_a, op_b)
    told = [change for change in changes if not inputs.explain(change.a, change.b)]
    told = [change for change in told if not (follows and change.ingredient == "attributes")]
    if not changes and as_before:
        told = _compare_results(pairing, node_a, op_a, op_b)
    return [replace(change, op=pairing.a.numbers[node_a]) for change in told]


def _find_outputs(pairing: Pairing) -> list[KeyChange]:
    left = [KeyChange("outputs", "an output", name_value(pairing.a, value), NONE) for value in pairing.outputs_a]
    return left + [KeyChange("outputs", "an output", NONE, name_value(pairing.b, value)) for value in pairing.outputs_b]


class _InputChanges:
    """The changes of input types, grouped by equal changes, and a test for changes that follow from them."""

    def __init__(self, pairing: Pairing):
        groups: dict[Aspect, list[tuple[int, str]]] = defaultdict(list)
        for value, type_ in enumerate(pairing.a.graph.inputs):
            if value in pairing.a.partner:
                for name, a, b in compare_types(type_, pairing.b.graph.inputs[pairing.a.partner[value]]):
                    kind = "size" if name.startswith(SIZE_OF_DIMENSION) else name
                    groups[kind, a, b].append((value, name))
        self.changes = [_explain_inputs(kind, a, b, where) for (kind, a, b), where in groups.items()]
        self.values = frozenset((a, b) for _, a, b in groups)

    def explain(self, a: str, b: str) -> bool:
        """True if two literals differ as some inputs do: by the same dtypes or sizes, or by a ratio of sizes."""
        ratios = {ratio for x, y in self.values for ratio in (_ratio(x, y), _ratio(y, x)) if ratio}
        return (a, b) in self.values or _ratio(a, b) in ratios


def _explain_inputs(kind: str, a: str, b: str, where: list[tuple[int, str]]) -> KeyChange:
    names = {name for _, name in where}
    what = f"the {names.pop()}" if len(names) == 1 else f"a {kind}"
    inputs = "input" if len(where) == 1 else "inputs"
    return KeyChange("inputs", f"{what} of {inputs} {join_words([f'%{value}' for value, _ in where])}", a, b)


def _ratio(a: str, b: str) -> float | None:
    try:
        return round(float(a) / float(b), 9)
    except (ValueError, ArithmeticError):
        return None


def _operand_types(nodes: Nodes, op: Op) -> list[str]:
    return sorted(type_text(type_of(nodes, value), anonymous=True) for _, value in argument_refs(op))


def _compare_results(pairing: Pairing, node: int, op_a: Op, op_b: Op) -> list[KeyChange]:
    where = f"the result of {name_op(pairing.a, node)}"
    pairs = zip(op_a.outputs, op_b.outputs, strict=False)
    tensors = [(x, y) for x, y in pairs if isinstance(x, TensorType) and isinstance(y, TensorType)]
    return [KeyChange("ops", f"the {name} of {where}", a, b) for pair in tensors for name, a, b in compare_types(*pair)]


def _explain_operands(pairing: Pairing, node: int) -> KeyChange:
    """Returns the change of an op's operands. B's are named after their partners in A, if they have any."""
    a, b, other = pairing.a, pairing.b, pairing.a.partner[node]
    in_a = [name_value(a, value) for _, value in argument_refs(a.op_at[node])]
    in_b = []
    for _, value in argument_refs(b.op_at[other]):
        same = b.find_partner(value)
        in_b.append(name_value(b, value) if same is None else name_value(a, same))
    subject = f"the operand{'s' if len(in_a) > 1 else ''} of {name_op(a, node)}"
    return KeyChange("ops", subject, join_words(in_a), join_words(in_b), a.numbers[node])
