"""One thing in which two keys differ."""

from __future__ import annotations

from dataclasses import dataclass

NONE = "none"
"""The value of what is not there."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing in which two keys, A and B, differ.

    Attributes:
        ingredient: that has it, by name.
        place: what and where, in words: ``a constant, the 2nd operand of op 3 (mul)``.
        a: A's value.
        b: B's value.
        op: the number of the op that has it, from 1: A's, or B's if only B has it; None if it is about no op.
    """

    ingredient: str
    place: str
    a: str
    b: str
    op: int | None = None


_ORDINALS = {1: "st", 2: "nd", 3: "rd"}


def ordinal(number: int) -> str:
    """``1st``, ``2nd``, ``11th``."""
    ending = "th" if number % 100 in (11, 12, 13) else _ORDINALS.get(number % 10, "th")
    return f"{number}{ending}"


def listed(items: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1])))
