"""Ops and values of a graph in words."""

from __future__ import annotations

from fusioncache.explain.colours import Nodes
from fusioncache.ir import Op


def op_text(nodes: Nodes, node: int) -> str:
    """An op with its number, from 1: ``op 3 (mul)``."""
    number, op = nodes.op_at[node]
    return f"op {number} ({short_name(op)})"


def value_text(nodes: Nodes, value: int) -> str:
    """Where a value comes from: ``%0`` for an input, else its op."""
    node = nodes.node_of[value]
    if node not in nodes.op_at:
        return f"%{value}"
    which = f"result {nodes.place(value) + 1} of " if len(nodes.op_at[node][1].outputs) > 1 else ""
    return which + op_text(nodes, node)


def short_name(op: Op) -> str:
    """An op's name without the name of its library."""
    return op.name.rpartition(".")[2]


def short_names(a: Op, b: Op) -> tuple[str, str]:
    """Two ops' names, as short as they still differ."""
    short = short_name(a), short_name(b)
    return short if short[0] != short[1] else (a.name, b.name)
