"""Numbers that know what they are made of, and report each use of their value.

Interpreted code is given a ``Size`` in place of each number that an operation returns. It may be moved about, added,
multiplied, divided, which gives a ``Fraction``, and handed to operations. Whatever else is done with one, also by code
that is not interpreted, needs its value and is a look at it: comparing, hashing, formatting, converting. A few
functions written in C take a number's value without asking it; they are called with plain numbers, by ``watch``.

Thunder's passes are not interpreted. They are given a ``SymbolicSize``, which only says that it is an integer, and is
none: code in C has to ask it. So it is with a ``SymbolicFraction``.

What a number is made of is an expression: numbers that operations returned, and Python's own arithmetic, done anew at
other sizes, so that each bit is the one that Python would compute.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Self

from fusioncache.ir.strict_json import LARGEST
from fusioncache.thunder_adapter.api import BoundSymbol, Proxy, Variable

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

    def validate(self) -> None:
        """Checks the text.

        Raises:
            ValueError: if it is not that of a finite number, or Python writes it otherwise.
        """
        number = float(self.text)
        if repr(number) != self.text or not math.isfinite(number):
            raise ValueError("is no number with a point")


@dataclass(frozen=True, slots=True)
class Operation:
    """Two numbers, and how they are combined.

    Attributes:
        symbol: one of ``ARITHMETIC``.
        left: the first operand.
        right: the second one.
    """

    symbol: Annotated[str, re.compile("|".join(map(re.escape, ARITHMETIC)))]
    left: Expression
    right: Expression

    def __str__(self) -> str:
        """Returns it in Python's notation, with parentheses."""
        return f"({self.left} {self.symbol} {self.right})"


Integer = Annotated[int, range(-LARGEST, LARGEST + 1)]
"""A constant without a point, of those that can be stored."""

type Expression = Integer | Float | Number | Operation


def write_constant(value: int | float) -> int | Float:
    """Returns the expression of a plain number."""
    return Float(repr(float(value))) if isinstance(value, float) else int(value)


def gives_float(expression: Expression) -> bool:
    """True if an expression is a number with a point, whatever the sizes."""
    if isinstance(expression, Operation):
        return expression.symbol == "/" or gives_float(expression.left) or gives_float(expression.right)
    return isinstance(expression, Float)


def is_usual(value: int | float) -> bool:
    """True if a number is neither 0.0, which may have a sign that no comparison tells, nor infinite, nor none."""
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


class LookListener(ABC):
    """The listener that is told of what is looked at."""

    def see_value(self, size: Any, reason: str) -> None:
        """Notes that something depends on the value of a size."""
        self.look("==", size.expression, express(plain(size)), True, reason)

    def see_comparison(self, symbol: str, left: Expression, right: Expression, outcome: bool) -> None:
        """Notes that something depends on how two numbers compare."""
        self.look(symbol, left, right, outcome, "compares")

    @abstractmethod
    def look(self, symbol: str, left: Expression, right: Expression, outcome: bool, reason: str) -> None:
        """Notes that something depends on how two numbers compare, and why: see ``Look``."""

    @abstractmethod
    def refuse(self, reason: str) -> None:
        """Notes why nothing can be said of other sizes."""


class Watched:
    """What is the same for an integer and a number with a point that know what they are made of."""

    __slots__ = ()

    if TYPE_CHECKING:
        expression: Expression
        listener: LookListener

    def __neg__(self) -> Any:
        """Returns zero less this."""
        return combine("-", 0, self)

    def __bool__(self) -> bool:
        """Compares with zero."""
        outcome = bool(plain(self) != 0)
        self.listener.see_comparison("!=", self.expression, 0, outcome)
        return outcome

    def __reduce_ex__(self, _: Any) -> Any:
        """Copies as a plain number."""
        self.listener.see_value(self, "copies it")
        return type(plain(self)), (plain(self),)


class _WatchedNumber(Watched):
    """A watched value that is a number."""

    def __new__(cls, value: Any, expression: Expression, listener: LookListener) -> Self:
        """Makes one."""
        made = super().__new__(cls, value)  # type: ignore[call-arg]
        made.expression = expression
        made.listener = listener
        return made


class Size(_WatchedNumber, int):
    """An integer with its expression, and the listener to which looks at it are reported."""

    @property  # type: ignore[misc]
    def __class__(self) -> type[int]:  # type: ignore[override]
        """Returns what a plain integer has: code must not tell them apart."""
        return int


class Count(Size):
    """The number of a tensor's elements: torch has a method for it, and Thunder a number that can be called.

    Code that asks for its class, and code in C, is given what Thunder has.

    Attributes:
        own: Thunder's number.
    """

    own: int

    def __new__(cls, value: int, expression: Expression, listener: LookListener) -> Self:
        """Makes one of Thunder's number."""
        made = super().__new__(cls, value, expression, listener)
        made.own = value
        return made

    @property  # type: ignore[misc]
    def __class__(self) -> type[int]:  # type: ignore[override]
        """Returns what Thunder's number has."""
        return type(self.own)

    def __call__(self) -> Size:
        """Returns it as any other size."""
        return to_int(self)


class Fraction(_WatchedNumber, float):
    """A number with a point that is computed from sizes."""

    @property  # type: ignore[misc]
    def __class__(self) -> type[float]:  # type: ignore[override]
        """Returns what a plain number has: code must not tell them apart."""
        return float


class Symbolic(Watched):
    """A number that is none but for who asks whether it is one.

    Attributes:
        value: it is.
        expression: what it is made of.
        listener: is told of looks at it.
    """

    __slots__ = ("expression", "listener", "value")

    if TYPE_CHECKING:  # what it has of a number its classes get below: see ``_complete``

        def __lt__(self, other: Any) -> bool: ...
        def __floordiv__(self, other: Any) -> Any: ...

    def __init__(self, value: Any, expression: Expression, listener: LookListener) -> None:
        self.value = value
        self.expression = expression
        self.listener = listener

    def __pos__(self) -> Self:
        """Returns itself."""
        return self

    def __hash__(self) -> int:
        """Returns the hash of the value, to Thunder's bound symbols.

        Raises:
            TypeError: to other code, which may keep a value by its hash for longer than the passes take.
        """
        if sys._getframe(1).f_code not in _hashes_of_bound_symbols():
            raise TypeError("a symbolic size is hashed")
        return hash(self.value)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        """Divides with a rest."""
        return self // other, self % other


class SymbolicSize(Symbolic):
    """An integer that is none."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> type[int]:  # type: ignore[override]
        """Returns what an integer has: code must not tell them apart."""
        return int

    def __call__(self) -> SymbolicSize:
        """Returns itself: the number of a tensor's elements is called in torch, and is an attribute in Thunder."""
        return self


class SymbolicFraction(Symbolic):
    """A number with a point that is none.

    Attributes:
        divided: the size and the plain integer that it is the quotient of, if it is one.
    """

    __slots__ = ("divided",)

    def __init__(self, value: float, expression: Expression, listener: LookListener) -> None:
        super().__init__(value, expression, listener)
        self.divided: tuple[SymbolicSize, int] | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type[float]:  # type: ignore[override]
        """Returns what a number with a point has: code must not tell them apart."""
        return float

    def __floor__(self) -> Any:
        """Returns the greatest integer that is not above it."""
        return _round(self, is_up=False)

    def __ceil__(self) -> Any:
        """Returns the least integer that is not below it."""
        return _round(self, is_up=True)


_EXACT = 2**20
"""What a size below 2**32 is divided by so that the quotient, as a float, rounds up and down as the exact one does."""


def _round(fraction: SymbolicFraction, *, is_up: bool) -> Any:
    """Rounds to an integer: a size that is divided by a small one without a look at it."""
    if fraction.divided is not None:
        size, by = fraction.divided
        if 0 < by < _EXACT and size < 2**32:
            return -(-size // by) if is_up else size // by
    fraction.listener.see_value(fraction, "rounds it")
    return math.ceil(fraction.value) if is_up else math.floor(fraction.value)


@lru_cache(maxsize=1)
def _hashes_of_bound_symbols() -> frozenset[CodeType]:
    from fusioncache.thunder_adapter.accelerator_api import BoundSymbolRHS, FrozenDict

    functions: tuple[Any, ...] = (vars(BoundSymbol)["_hash"].func, BoundSymbolRHS.__hash__, FrozenDict.__hash__)
    return frozenset(each.__code__ for each in functions)


WATCHED = (Size, Fraction, Count)
SYMBOLIC = (SymbolicSize, SymbolicFraction)
_KINDS = (*WATCHED, *SYMBOLIC)
_COMPARING = {"==": "__eq__", "!=": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}


def plain(size: Any) -> Any:
    """Returns the value of a size, without a look at it, as a plain number. Others are returned as they are."""
    if type(size) in SYMBOLIC:
        return size.value
    if type(size) is Fraction:
        return float.__float__(size)
    return int.__int__(size) if type(size) in (Size, Count) else size


def bare(size: Any) -> Any:
    """Returns what Thunder has where a size is, without a look at it. Others are returned as they are."""
    return size.own if type(size) is Count else plain(size)


def express(value: Any) -> Expression:
    """Returns the expression of a number."""
    return value.expression if type(value) in _KINDS else write_constant(value)


def is_whole(value: Any) -> bool:
    """True if this is an integer of which the value or the expression is known."""
    return type(value) in (int, bool, Size, Count, SymbolicSize)


def is_number(value: Any) -> bool:
    """True if this is a finite number of which the value or the expression is known."""
    return type(value) in (int, bool, *_KINDS) or (type(value) is float and math.isfinite(value))


def combine(symbol: str, left: Any, right: Any) -> Any:
    """Returns what two numbers give, of which one or both know what they are made of.

    Raises:
        ArithmeticError: as Python does for their values.
    """
    known = [each for each in (left, right) if type(each) in _KINDS]
    _check_same_trace(*known)
    if symbol in ("//", "%", "/") and plain(right) == 0:
        known[0].listener.see_comparison("==", express(right), 0, True)
    value = ARITHMETIC[symbol](plain(left), plain(right))
    if not is_usual(value):
        for each in known:
            each.listener.see_value(each, f"computes {symbol}")
        return value
    kinds = WATCHED if type(known[0]) in WATCHED else SYMBOLIC
    kind = kinds[isinstance(value, float)]
    made = kind(value, Operation(symbol, express(left), express(right)), known[0].listener)
    if type(made) is SymbolicFraction and symbol == "/" and type(left) is SymbolicSize and type(right) is int:
        made.divided = left, right
    return made


def to_float(number: Any) -> Any:
    """Returns a number with a point for an integer, as ``float`` does."""
    return number if isinstance(plain(number), float) else combine("/", number, 1)


def to_int(size: Size) -> Size:
    """Returns a size that is no more than an integer, as ``int`` does."""
    return Size(plain(size), size.expression, size.listener)


def _check_same_trace(one: Any, *others: Any) -> None:
    """Has both traces refused that two sizes are from, of which one was left where it lasts."""
    for other in others:
        if other.listener is not one.listener:
            one.listener.refuse("meets a size of another trace")
            other.listener.refuse("meets a size of another trace")


def _compute(symbol: str, *, is_reflected: bool) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if isinstance(other, Proxy):
            return NotImplemented
        left, right = (other, self) if is_reflected else (self, other)
        if is_number(other):
            return combine(symbol, left, right)
        self.listener.see_value(self, f"computes {symbol} with a {type(other).__name__}")
        return ARITHMETIC[symbol](plain(left), plain(right)) if isinstance(other, float | complex) else NotImplemented

    return method


def _compare(symbol: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if other is None or isinstance(other, str) or type(other) is Variable:
            return NotImplemented  # which no number is equal to
        if not is_number(other):
            self.listener.see_value(self, f"compares it with a {type(other).__name__}")
            return COMPARISONS[symbol](plain(self), other)
        _check_same_trace(self, *(each for each in (other,) if type(each) in _KINDS))
        outcome = COMPARISONS[symbol](plain(self), plain(other))
        self.listener.see_comparison(symbol, express(self), express(other), outcome)
        return outcome

    return method


def _look(name: str, base: type) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        if args and isinstance(args[0], Proxy):
            return NotImplemented
        self.listener.see_value(self, f"calls {base.__name__}.{name}")
        result = getattr(base, name)(plain(self), *map(plain, args))
        if result is NotImplemented and isinstance(args[0], float | complex):
            return getattr(type(args[0])(plain(self)), name)(args[0])
        return result

    return method


def _look_at(name: str, base: type) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        self.listener.see_value(self, f"asks for {base.__name__}.{name}")
        return getattr(plain(self), name)

    return method


_KEPT = frozenset({
    "__new__", "__init__", "__class__", "__dict__", "__getattribute__", "__setattr__", "__delattr__", "__doc__",
    "__init_subclass__", "__subclasshook__", "__sizeof__", "__dir__", "__reduce__", "__reduce_ex__", "__getstate__",
    "from_bytes", "fromhex", "__getformat__",
})  # fmt: skip
"""What does not look at the value."""


def _complete(kind: type, base: type) -> None:
    """Gives a class a method for everything that a number can be asked, unless it has its own."""
    arithmetic = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod", "/": "truediv"}
    own = [each for each in kind.__mro__ if each.__module__ == __name__]
    written = frozenset(name for each in own for name in vars(each)) | _KEPT
    for name in dir(base):
        if name not in written:
            is_called = callable(getattr(base, name))
            setattr(kind, name, _look(name, base) if is_called else property(_look_at(name, base)))
    for symbol, name in arithmetic.items():
        setattr(kind, f"__{name}__", _compute(symbol, is_reflected=False))
        setattr(kind, f"__r{name}__", _compute(symbol, is_reflected=True))
    for symbol, method in _COMPARING.items():
        setattr(kind, method, _compare(symbol))


_complete(Size, int)
_complete(SymbolicSize, int)
_complete(Fraction, float)
_complete(SymbolicFraction, float)
