"""What a size is made of, or a number that is computed from sizes: numbers that operations returned, and arithmetic.

It is Python's own arithmetic, done anew at other sizes, so that each bit is the one that Python would compute.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "//": operator.floordiv,
        "%": operator.mod,
        "/": operator.truediv,
    }
)
"""What gives a number for any two, or raises an error: for two integers an integer, but for the last one."""

COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType(
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
class Float:
    """A constant with a point. Its text tells it from the integer that it is equal to, and 0.0 from -0.0.

    Attributes:
        text: as Python writes it.
    """

    text: str

    def __str__(self) -> str:
        """Returns the text."""
        return self.text


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


type Expression = int | Float | Number | Operation


def write_constant(value: int | float) -> int | Float:
    """Returns the expression of a plain number."""
    return Float(repr(float(value))) if isinstance(value, float) else int(value)


def gives_float(expression: Expression) -> bool:
    """Tells whether an expression is a number with a point, whatever the sizes."""
    if isinstance(expression, Operation):
        return expression.symbol == "/" or gives_float(expression.left) or gives_float(expression.right)
    return isinstance(expression, Float)


def is_usual(value: int | float) -> bool:
    """Tells whether a number is neither 0.0, which may have a sign that no comparison tells, nor infinite, nor none."""
    return not isinstance(value, float) or (value != 0.0 and math.isfinite(value))


def evaluate(expression: Expression, numbers: Mapping[int, Any]) -> Any:
    """Computes an expression.

    Args:
        expression: what to compute.
        numbers: the values of the numbers in it, by position.

    Raises:
        ArithmeticError: if something is divided by zero, or is a number with a point that is not as usual.
        KeyError: if there is no such number.
    """
    if isinstance(expression, Number):
        return numbers[expression.position]
    if isinstance(expression, Operation):
        left, right = evaluate(expression.left, numbers), evaluate(expression.right, numbers)
        result = ARITHMETIC[expression.symbol](left, right)
        if type(result) is float and not is_usual(result):
            raise ArithmeticError(f"{expression} is {result}")
        return result
    return float(expression.text) if isinstance(expression, Float) else expression
