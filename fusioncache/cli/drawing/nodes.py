"""A template's graph as a graph of networkx, with the text of each box."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fusioncache.ir import Arg, Const, Graph, Op, TensorType, ValueType, operands
from fusioncache.template.text import op_line, type_text

if TYPE_CHECKING:
    import networkx as nx

_LONGEST_LABEL = 40


@dataclass(frozen=True, slots=True)
class Node:
    """One box.

    Attributes:
        kind: ``input``, ``size``, ``op`` or ``output``.
        label: what it is.
        detail: its type; empty if it has none of its own.
        text: its line of the canonical text.
    """

    kind: str
    label: str
    detail: str
    text: str


def picture_of(graph: Graph) -> nx.DiGraph:
    """Returns the graph with a node for each input, size, op and output.

    Nodes have names such as ``v3``, by the number of their first value, and ``out0``. Each has a ``Node`` as attribute
    ``node``.
    """
    import networkx as nx

    picture = nx.DiGraph()
    owner: dict[int, str] = {}
    for name, node in _leaves(graph):
        owner[len(owner)] = name
        picture.add_node(name, node=node)
    for op, first in graph.results():
        name = f"v{first}"
        picture.add_node(name, node=_op_node(op, first))
        picture.add_edges_from((owner[index], name) for _, index in operands(op))
        owner |= {first + index: name for index in range(len(op.outputs))}
    for index, value in enumerate(graph.outputs):
        picture.add_node(f"out{index}", node=Node("output", f"output {index}", "", f"output %{value}"))
        picture.add_edge(owner[value], f"out{index}")
    return picture


def _leaves(graph: Graph) -> Iterator[tuple[str, Node]]:
    for number, type_ in enumerate(graph.inputs):
        yield f"v{number}", Node("input", f"input %{number}", _short(type_), f"input %{number}: {type_}")
    for number in range(len(graph.inputs), graph.first_result):
        yield f"v{number}", Node("size", f"size %{number}", "", f"size %{number}")


def _op_node(op: Op, first: int) -> Node:
    literals = [_literals(arg) for arg in op.args] + [
        f"{name}={_literals(arg)}" for name, arg in op.kwargs if _literals(arg)
    ]
    label = " ".join(filter(None, [op.name.rpartition(".")[2], *literals]))
    detail = ", ".join(_short(type_) for type_ in op.outputs if type_)
    return Node("op", _cut(label), _cut(detail), op_line(op, first))


def _literals(arg: Arg) -> str:
    """Returns the literals in an argument; empty if there are none."""
    if isinstance(arg, Const):
        return "" if arg.kind == "none" else str(arg).removeprefix(f"{arg.kind}:")
    if isinstance(arg, tuple) and arg and all(isinstance(item, Const) for item in arg):
        return f"({', '.join(map(_literals, arg))})"
    return ""


def _short(type_: ValueType) -> str:
    return type_text(type_).rpartition(" ")[0] if isinstance(type_, TensorType) else str(type_)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_LABEL else f"{text[: _LONGEST_LABEL - 1]}…"
