"""One thing in which two keys differ, and how sentences name operations and values."""

from __future__ import annotations

from dataclasses import dataclass

from fusioncache.ir import Op
from fusioncache.observe.explain.likeness import Nodes

NONE = "none"
"""What stands for a value where there is none."""

_LONGEST = 60
_BEFORE = 20
"""Characters of a long value that are shown before it differs."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing in which two keys, A and B, differ.

    Attributes:
        ingredient: the name of the ingredient that has it.
        subject: what differs, in words: ``a constant, the 2nd operand of op 3 (mul)``.
        a: A's value.
        b: B's value.
        op: the number of the op that has it, from 1: A's, or B's if only B has it; None if it is about no op.
    """

    ingredient: str
    subject: str
    a: str
    b: str
    op: int | None = None

    def data(self) -> dict[str, str | int | None]:
        """Returns the change as JSON has it."""
        return {"ingredient": self.ingredient, "place": self.subject, "a": self.a, "b": self.b, "op": self.op}


_ORDINALS = {1: "st", 2: "nd", 3: "rd"}


def write_ordinal(number: int) -> str:
    """Returns ``1st``, ``2nd``, ``11th``."""
    ending = "th" if number % 100 in (11, 12, 13) else _ORDINALS.get(number % 10, "th")
    return f"{number}{ending}"


def join_words(items: list[str]) -> str:
    """Returns ``a``, ``a and b``, or ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1])))


def shorten_values(a: str, b: str, longest: int = _LONGEST) -> tuple[str, str]:
    """Returns two values, those that are longer than so many characters from where they begin to differ."""
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
    number, op = nodes.op_at[node]
    return f"op {number} ({shorten_name(op)})"


def name_value(nodes: Nodes, value: int) -> str:
    """Returns where a value comes from: ``%0`` for an input, else its op."""
    node = nodes.node_of[value]
    if node not in nodes.op_at:
        return f"%{value}"
    which = f"result {nodes.result_index(value) + 1} of " if len(nodes.op_at[node][1].outputs) > 1 else ""
    return which + name_op(nodes, node)


def shorten_name(op: Op) -> str:
    """Returns an op's name without the name of its library."""
    return op.name.rpartition(".")[2]


def shorten_names(a: Op, b: Op) -> tuple[str, str]:
    """Returns two ops' names, as short as they still differ."""
    short = shorten_name(a), shorten_name(b)
    return short if short[0] != short[1] else (a.name, b.name)
