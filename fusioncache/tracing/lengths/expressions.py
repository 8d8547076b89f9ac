"""What a size is made of: numbers that operations returned, and arithmetic."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

ARITHMETIC: Mapping[str, Callable[[int, int], int]] = MappingProxyType(
    {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "//": operator.floordiv,
        "%": operator.mod,
    }
)
"""What gives an integer for any two, or raises an error."""

COMPARISONS: Mapping[str, Callable[[int, int], bool]] = MappingProxyType(
    {
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    }
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number that an operation returned, such as a size of a tensor.

    Attributes:
        position: its place among all the numbers that the operations of a program returned, from 1 on.
        name: how people are told of it.
    """

    position: int
    name: str

    def __str__(self) -> str:
        """Returns its name."""
        return self.name


@dataclass(frozen=True, slots=True)
class Operation:
    """Two numbers, and how they are combined.

    Attributes:
        symbol: one of ``ARITHMETIC``.
        left: the first operand.
        right: the second one.
    """

    symbol: str
    left: Expression
    right: Expression

    def __str__(self) -> str:
        """Returns it in Python's notation, with parentheses."""
        return f"({self.left} {self.symbol} {self.right})"


type Expression = int | Number | Operation


def evaluate(expression: Expression, numbers: Mapping[int, int]) -> int:
    """Computes an expression.

    Args:
        expression: what to compute.
        numbers: the values of the numbers in it, by position.

    Raises:
        ZeroDivisionError: if something is divided by zero.
        KeyError: if there is no such number.
    """
    if isinstance(expression, Number):
        return numbers[expression.position]
    if isinstance(expression, Operation):
        left, right = evaluate(expression.left, numbers), evaluate(expression.right, numbers)
        return ARITHMETIC[expression.symbol](left, right)
    return expression
