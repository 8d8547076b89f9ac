"""Integers that know what they are made of, and tell whoever asks for their value.

Interpreted code is given these in place of the numbers that operations return. They may be moved about, added,
multiplied and handed to operations. Whatever else is done with one, also by code that nobody interprets, needs its
value and is a look at it: comparing, hashing, formatting, converting. A few functions written in C take an integer's
value without asking it; they are called with plain integers, by ``watch``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

from fusioncache.tracing.lengths.expressions import ARITHMETIC, COMPARISONS, Expression, Operation


class Witness(Protocol):
    """Whoever is told of what is looked at."""

    def see_value(self, size: Size, reason: str) -> None:
        """Notes that something depends on the value of a size."""

    def see_comparison(self, symbol: str, left: Expression, right: Expression, outcome: bool) -> None:
        """Notes that something depends on how two numbers compare."""

    def refuse(self, reason: str) -> None:
        """Notes why nothing can be said of other sizes."""


class Size(int):
    """An integer with its expression, and the one who is told of looks at it."""

    expression: Expression
    witness: Witness

    def __new__(cls, value: int, expression: Expression, witness: Witness) -> Self:
        """Makes one."""
        made = super().__new__(cls, value)
        made.expression = expression
        made.witness = witness
        return made

    @property  # type: ignore[misc]
    def __class__(self) -> type[int]:  # type: ignore[override]
        """Returns what a plain integer has: code must not tell them apart."""
        return int

    def __neg__(self) -> Size:
        """Returns zero less this."""
        return Size(-plain(self), Operation("-", 0, self.expression), self.witness)

    def __bool__(self) -> bool:
        """Compares with zero."""
        outcome = plain(self) != 0
        self.witness.see_comparison("!=", self.expression, 0, outcome)
        return outcome

    def __reduce_ex__(self, _: Any) -> Any:
        """Copies as a plain integer."""
        self.witness.see_value(self, "copies it")
        return int, (plain(self),)


def plain(size: int) -> int:
    """Returns the value of a size, without a look at it, as a plain integer. Others are returned as they are."""
    return int.__int__(size) if type(size) is Size else size


def express(value: int) -> Expression:
    """Returns the expression of an integer."""
    return value.expression if isinstance(value, Size) else int(value)


def is_whole(value: Any) -> bool:
    """Tells whether this is an integer of which the value or the expression is known."""
    return type(value) in (int, bool, Size)


_COMPARING = {"==": "__eq__", "!=": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}


def _check_same_trace(one: Size, other: Any) -> None:
    """Has both traces refused that two sizes are from, of which one was left where it lasts."""
    if type(other) is Size and other.witness is not one.witness:
        one.witness.refuse("meets a size of another trace")
        other.witness.refuse("meets a size of another trace")


def _compute(symbol: str, *, is_reflected: bool) -> Callable[[Size, Any], Any]:
    def method(self: Size, other: Any) -> Any:
        if not is_whole(other):
            self.witness.see_value(self, f"computes {symbol} with a {type(other).__name__}")
            return NotImplemented if not isinstance(other, float | complex) else _of_plain(self, other)
        _check_same_trace(self, other)
        left, right = (other, self) if is_reflected else (self, other)
        if symbol in ("//", "%") and plain(right) == 0:
            self.witness.see_comparison("==", express(right), 0, True)
        expression = Operation(symbol, express(left), express(right))
        return Size(ARITHMETIC[symbol](plain(left), plain(right)), expression, self.witness)

    def _of_plain(self: Size, other: Any) -> Any:
        left, right = (other, plain(self)) if is_reflected else (plain(self), other)
        return ARITHMETIC[symbol](left, right)

    return method


def _compare(symbol: str) -> Callable[[Size, Any], Any]:
    def method(self: Size, other: Any) -> Any:
        if other is None or isinstance(other, str):
            return NotImplemented  # which no number is equal to
        if not is_whole(other):
            self.witness.see_value(self, f"compares it with a {type(other).__name__}")
            return getattr(plain(self), _COMPARING[symbol])(other)
        _check_same_trace(self, other)
        outcome = COMPARISONS[symbol](plain(self), plain(other))
        self.witness.see_comparison(symbol, express(self), express(other), outcome)
        return outcome

    return method


def _look(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Size, *args: Any) -> Any:
        self.witness.see_value(self, f"calls int.{name}")
        return own(plain(self), *map(plain, args))

    return method


def _look_at(name: str) -> Callable[[Size], Any]:
    def method(self: Size) -> Any:
        self.witness.see_value(self, f"asks for int.{name}")
        return getattr(plain(self), name)

    return method


_KEPT = frozenset({
    "__new__", "__init__", "__class__", "__dict__", "__getattribute__", "__setattr__", "__delattr__", "__doc__",
    "__init_subclass__", "__subclasshook__", "__sizeof__", "__dir__", "__reduce__", "__reduce_ex__", "__getstate__",
    "__neg__", "__bool__", "from_bytes",
})  # fmt: skip
"""What does not look at the value, or is written above."""


def _complete() -> None:
    """Gives the class a method for everything that an integer can be asked."""
    arithmetic = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod"}
    for name in dir(int):
        own = getattr(int, name)
        if name in _KEPT:
            continue
        setattr(Size, name, _look(name, own) if callable(own) else property(_look_at(name)))
    for symbol, name in arithmetic.items():
        setattr(Size, f"__{name}__", _compute(symbol, is_reflected=False))
        setattr(Size, f"__r{name}__", _compute(symbol, is_reflected=True))
    for symbol, method in _COMPARING.items():
        setattr(Size, method, _compare(symbol))


_complete()
