"""A template as text: what people read, and what is hashed."""

from __future__ import annotations

from fusioncache.ir import Arg, Const, Graph, Op, Ref, TensorType, ValueType


def type_text(type_: ValueType | None, *, anonymous: bool = False) -> str:
    """A type as text. ``anonymous``: symbolic sizes without their numbers."""
    if type_ is None:
        return "_"
    if not anonymous or not isinstance(type_, TensorType):
        return str(type_)
    return str(
        TensorType(type_.dtype, tuple(-1 if isinstance(size, Ref) else size for size in type_.shape), type_.device)
    )


def graph_text(graph: Graph) -> str:
    """The whole graph, a line for each input, op and output. Two graphs are equal when their texts are."""
    lines = [*input_lines(graph), *op_lines(graph, Inline()), *output_lines(graph)]
    return "\n".join(lines) + "\n"


def input_lines(graph: Graph) -> list[str]:
    """A line for each input and each symbolic size."""
    lines = [f"input %{number}: {type_}" for number, type_ in enumerate(graph.inputs)]
    return lines + [f"size %{number}" for number in range(len(graph.inputs), graph.first_result)]


def output_lines(graph: Graph) -> list[str]:
    """A line for each output."""
    return [f"output %{value}" for value in graph.outputs]


def op_lines(graph: Graph, literals: Inline) -> list[str]:
    """A line for each op. ``literals`` says how a literal is written."""
    return [op_line(op, first, literals) for op, first in graph.results()]


def op_line(op: Op, first: int, literals: Inline) -> str:
    """One op: its results with their types, its name and its arguments."""
    results = ", ".join(f"%{first + place}: {type_text(type_)}" for place, type_ in enumerate(op.outputs))
    args = [_arg_text(arg, literals, place) for place, arg in enumerate(op.args)]
    args += [f"{name}={_arg_text(arg, literals, name)}" for name, arg in op.kwargs]
    return f"{results} = {op.name}({', '.join(args)})"


class Inline:
    """Writes a literal where it stands."""

    def constant(self, const: Const) -> str:
        """A number that takes part in the arithmetic."""
        return str(const)

    def attribute(self, const: Const) -> str:
        """Anything else that is fixed: dimensions, dtypes, shapes, devices, flags."""
        return str(const)


def _arg_text(arg: Arg, literals: Inline, place: int | str) -> str:
    if isinstance(arg, Ref):
        return f"%{arg.index}"
    if isinstance(arg, tuple):
        items = ", ".join(_arg_text(item, literals, "item") for item in arg)
        return f"({items}{',' if len(arg) == 1 else ''})"
    number = isinstance(place, int) and arg.kind in ("int", "float", "bool", "complex")
    return literals.constant(arg) if number else literals.attribute(arg)
