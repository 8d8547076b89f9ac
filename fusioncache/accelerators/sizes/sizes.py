"""Symbolic integers and floats that record their expression and report each use of their value.

Interpreted code gets a ``Size`` in place of each integer that an operation returns. It may be moved, added,
multiplied, divided (which gives a ``Fraction``) and passed to operations. Every other use needs the value and is
reported as a guard: comparing, hashing, formatting, converting, also in code that is not interpreted. A few C functions
read a number's value without calling its methods; ``watch`` calls them with plain numbers.

Thunder's passes are not interpreted. They get a ``SymbolicSize``: its ``__class__`` is ``int`` but it is no subclass of
``int``, so that C code has to call its methods. A ``SymbolicFraction`` does the same for floats.

An expression combines variables with Python's arithmetic. It is evaluated again at other sizes, so that each bit is the
one that Python would compute.
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

from fusioncache.ir.codec import LARGEST_INTEGER
from fusioncache.ir.errors import Declined, Scope
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
"""Operators that return a number for any two, or raise. All but ``/`` return an integer for two integers."""

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
    """A variable: an integer that an operation returned or an argument has, such as a size of a tensor.

    Attributes:
        position: its index, from 1, among all such integers of a program.
        name: its name in messages.
    """

    position: int
    name: str

    def __str__(self) -> str:
        """Returns its name."""
        return self.name


@dataclass(frozen=True, slots=True)
class Float:
    """A float constant, stored as text: this distinguishes it from an equal integer, and 0.0 from -0.0.

    Attributes:
        text: its ``repr``.
    """

    text: str

    def __str__(self) -> str:
        """Returns the text."""
        return self.text

    def validate(self) -> None:
        """Checks the text.

        Raises:
            ValueError: if it is not the ``repr`` of a finite float.
        """
        number = float(self.text)
        if repr(number) != self.text or not math.isfinite(number):
            raise ValueError("is no number with a point")


@dataclass(frozen=True, slots=True)
class Operation:
    """A binary operation on two expressions.

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


Integer = Annotated[int, range(-LARGEST_INTEGER, LARGEST_INTEGER + 1)]
"""An integer constant in the range that can be stored."""

type Expression = Integer | Float | Number | Operation


def write_constant(value: int | float) -> int | Float:
    """Returns the expression of a plain number."""
    return Float(repr(float(value))) if isinstance(value, float) else int(value)


def gives_float(expression: Expression) -> bool:
    """True if an expression is a float at any sizes."""
    if isinstance(expression, Operation):
        return expression.symbol == "/" or gives_float(expression.left) or gives_float(expression.right)
    return isinstance(expression, Float)


def is_usual(value: int | float) -> bool:
    """True unless a number is a float that is zero, infinite or NaN. Comparisons do not show the sign of a zero."""
    return not isinstance(value, float) or (value != 0.0 and math.isfinite(value))


def evaluate(expression: Expression, numbers: Mapping[int, Any]) -> Any:
    """Computes an expression.

    Args:
        expression: the expression.
        numbers: the values of the numbers in it, by position.

    Raises:
        Declined: if it divides by zero, or a result is a float that is not usual.
        KeyError: if a variable has no value.
    """
    if isinstance(expression, Number):
        return numbers[expression.position]
    if isinstance(expression, Operation):
        left, right = evaluate(expression.left, numbers), evaluate(expression.right, numbers)
        try:
            result = ARITHMETIC[expression.symbol](left, right)
        except ArithmeticError as error:
            raise Declined(str(error), Scope.LENGTH) from error
        if type(result) is float and not is_usual(result):
            raise Declined(f"{expression} is {result}", Scope.LENGTH)
        return result
    return float(expression.text) if isinstance(expression, Float) else expression


class GuardListener(ABC):
    """Interface of listeners to guards: comparisons of sizes on which results depend."""

    def see_value(self, size: Any, reason: str) -> None:
        """Records that something depends on the value of a size."""
        self.guard("==", size.expression, express(plain(size)), True, reason)

    def see_comparison(self, symbol: str, left: Expression, right: Expression, outcome: bool) -> None:
        """Records that something depends on the outcome of a comparison."""
        self.guard(symbol, left, right, outcome, "compares")

    @abstractmethod
    def guard(self, symbol: str, left: Expression, right: Expression, outcome: bool, reason: str) -> None:
        """Records that something depends on the outcome of a comparison, and why: see ``SizeGuard``."""

    @abstractmethod
    def refuse(self, reason: str) -> None:
        """Records why other sizes are not supported."""


class Watched:
    """Base of all integers and floats that record their expression."""

    __slots__ = ()

    if TYPE_CHECKING:
        expression: Expression
        listener: GuardListener

    def __neg__(self) -> Any:
        """Returns zero minus this."""
        return combine("-", 0, self)

    def __bool__(self) -> bool:
        """True if it is not zero; reports a guard."""
        outcome = bool(plain(self) != 0)
        self.listener.see_comparison("!=", self.expression, 0, outcome)
        return outcome

    def __reduce_ex__(self, _: Any) -> Any:
        """Returns how to copy or pickle this as a plain number; reports a guard."""
        self.listener.see_value(self, "copies it")
        return type(plain(self)), (plain(self),)


class _WatchedNumber(Watched):
    """A watched value that is an instance of ``int`` or ``float``."""

    def __new__(cls, value: Any, expression: Expression, listener: GuardListener) -> Self:
        """Returns a new number with its expression and listener."""
        made = super().__new__(cls, value)  # type: ignore[call-arg]
        made.expression = expression
        made.listener = listener
        return made


class Size(_WatchedNumber, int):
    """An ``int`` with an expression that reports guards to a listener."""

    @property  # type: ignore[misc]
    def __class__(self) -> type[int]:  # type: ignore[override]
        """Returns ``int``: code must not distinguish this from a plain integer."""
        return int


class Count(Size):
    """The number of a tensor's elements: ``numel`` is a method in torch and a callable integer in Thunder.

    Code that reads its ``__class__``, and code in C, gets Thunder's class or integer.

    Attributes:
        thunder_number: Thunder's integer.
    """

    thunder_number: int

    def __new__(cls, value: int, expression: Expression, listener: GuardListener) -> Self:
        """Returns a new count for Thunder's integer."""
        made = super().__new__(cls, value, expression, listener)
        made.thunder_number = value
        return made

    @property  # type: ignore[misc]
    def __class__(self) -> type[int]:  # type: ignore[override]
        """Returns the class of Thunder's integer."""
        return type(self.thunder_number)

    def __call__(self) -> Size:
        """Returns it as a plain ``Size``."""
        return to_int(self)


class Fraction(_WatchedNumber, float):
    """A ``float`` that is computed from sizes."""

    @property  # type: ignore[misc]
    def __class__(self) -> type[float]:  # type: ignore[override]
        """Returns ``float``: code must not distinguish this from a plain float."""
        return float


class Symbolic(Watched):
    """Base of symbols that pass ``isinstance`` checks for ``int`` or ``float`` without subclassing it.

    Attributes:
        value: its plain value.
        expression: its expression.
        listener: receives its guards.
    """

    __slots__ = ("expression", "listener", "value")

    if TYPE_CHECKING:  # ``_complete`` adds the methods of a number to the subclasses below

        def __lt__(self, other: Any) -> bool: ...
        def __floordiv__(self, other: Any) -> Any: ...

    def __init__(self, value: Any, expression: Expression, listener: GuardListener) -> None:
        self.value = value
        self.expression = expression
        self.listener = listener

    def __pos__(self) -> Self:
        """Returns itself."""
        return self

    def __hash__(self) -> int:
        """Returns the hash of the value if Thunder's bound symbols ask for it.

        Raises:
            TypeError: if other code asks, which may keep the value in a dict or set after the passes.
        """
        if sys._getframe(1).f_code not in _hashes_of_bound_symbols():
            raise TypeError("a symbolic size is hashed")
        return hash(self.value)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        """Returns quotient and remainder."""
        return self // other, self % other


class SymbolicSize(Symbolic):
    """A symbolic integer that does not subclass ``int``."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> type[int]:  # type: ignore[override]
        """Returns ``int``: code must not distinguish this from an integer."""
        return int

    def __call__(self) -> SymbolicSize:
        """Returns itself: ``numel`` is called in torch, and is an attribute in Thunder."""
        return self


class SymbolicFraction(Symbolic):
    """A symbolic float that does not subclass ``float``.

    Attributes:
        divided: the symbolic dividend and the plain integer divisor if it is such a quotient; else None.
    """

    __slots__ = ("divided",)

    def __init__(self, value: float, expression: Expression, listener: GuardListener) -> None:
        super().__init__(value, expression, listener)
        self.divided: tuple[SymbolicSize, int] | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type[float]:  # type: ignore[override]
        """Returns ``float``: code must not distinguish this from a float."""
        return float

    def __floor__(self) -> Any:
        """Returns the greatest integer not above it."""
        return _round(self, is_up=False)

    def __ceil__(self) -> Any:
        """Returns the least integer not below it."""
        return _round(self, is_up=True)


_EXACT = 2**20
"""Below this divisor, floor and ceil of the float quotient of a size below 2**32 equal those of the exact one."""


def _round(fraction: SymbolicFraction, *, is_up: bool) -> Any:
    """Rounds to an integer. The quotient of a size below 2**32 and a small integer needs no guard."""
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
    """Returns the plain value of a size without reporting a guard; any other value as it is."""
    if type(size) in SYMBOLIC:
        return size.value
    if type(size) is Fraction:
        return float.__float__(size)
    return int.__int__(size) if type(size) in (Size, Count) else size


def to_thunder(size: Any) -> Any:
    """Returns Thunder's number for a size without reporting a guard; any other value as it is."""
    return size.thunder_number if type(size) is Count else plain(size)


def express(value: Any) -> Expression:
    """Returns the expression of a number."""
    return value.expression if type(value) in _KINDS else write_constant(value)


def is_whole(value: Any) -> bool:
    """True if a value is a plain integer or one with an expression."""
    return type(value) in (int, bool, Size, Count, SymbolicSize)


def is_number(value: Any) -> bool:
    """True if a value is a plain finite number or one with an expression."""
    return type(value) in (int, bool, *_KINDS) or (type(value) is float and math.isfinite(value))


MOST_PARTS = 256
"""The largest number of operations in an expression. Hashing, comparing and storing one takes time for each."""


def combine(symbol: str, left: Any, right: Any) -> Any:
    """Returns the result of an operator for two numbers, at least one of them with an expression.

    Raises:
        ArithmeticError: if Python raises it for their values.
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
    write = Operation if isinstance(value, float) else _simplify
    expression = write(symbol, express(left), express(right))
    if isinstance(expression, int):
        return value
    if _has_many_parts(expression):
        for each in known:
            each.listener.see_value(each, f"computes it in more than {MOST_PARTS} steps")
        return value
    kinds = WATCHED if type(known[0]) in WATCHED else SYMBOLIC
    kind = kinds[isinstance(value, float)]
    made = kind(value, expression, known[0].listener)
    if type(made) is SymbolicFraction and symbol == "/" and type(left) is SymbolicSize and type(right) is int:
        made.divided = left, right
    return made


_NEUTRAL: Mapping[str, int] = MappingProxyType({"+": 0, "-": 0, "*": 1, "//": 1})
"""The right operand with which an operator returns the left one, if both are integers."""
_INVERSE: Mapping[str, str] = MappingProxyType({"+": "-", "-": "+"})


def _simplify(symbol: str, left: Expression, right: Expression) -> Expression:
    """Returns the expression of an operation on integers, without neutral operands and without ``a - b + b``.

    Otherwise expressions would grow threefold with each layer that swaps the halves of a tensor.
    """
    pairs = [(left, right), (right, left)] if symbol in "+*" else [(left, right)]
    for one, other in pairs:
        if other == _NEUTRAL.get(symbol):
            return one
        if (symbol, other) == ("*", 0):
            return 0
        if isinstance(one, Operation) and one.symbol == _INVERSE.get(symbol) and one.right == other:
            return one.left
    return Operation(symbol, left, right)


def _has_many_parts(expression: Expression) -> bool:
    """True if an expression has more than ``MOST_PARTS`` operations. A shared operand counts where it is used."""
    count, pending = 0, [expression]
    while pending and count <= MOST_PARTS:
        each = pending.pop()
        if isinstance(each, Operation):
            count += 1
            pending += (each.left, each.right)
    return count > MOST_PARTS


def to_float(number: Any) -> Any:
    """Returns the number as a float, like ``float``, with its expression."""
    return number if isinstance(plain(number), float) else combine("/", number, 1)


def to_int(size: Size) -> Size:
    """Returns a plain ``Size`` of a size, like ``int``: a ``Count`` is no longer callable."""
    return Size(plain(size), size.expression, size.listener)


def _check_same_trace(one: Any, *others: Any) -> None:
    """Refuses both traces if two sizes are of different traces: then one of them outlived its trace."""
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
            return NotImplemented  # no number is equal to one of these
        if not is_number(other):
            self.listener.see_value(self, f"compares it with a {type(other).__name__}")
            return COMPARISONS[symbol](plain(self), other)
        _check_same_trace(self, *(each for each in (other,) if type(each) in _KINDS))
        outcome = COMPARISONS[symbol](plain(self), plain(other))
        self.listener.see_comparison(symbol, express(self), express(other), outcome)
        return outcome

    return method


def _guarded(name: str, base: type) -> Callable[..., Any]:
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
"""Attributes that do not depend on the value."""


def _complete(kind: type, base: type) -> None:
    """Adds the methods and attributes of a number to a class, except those that it defines."""
    arithmetic = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod", "/": "truediv"}
    own = [each for each in kind.__mro__ if each.__module__ == __name__]
    written = frozenset(name for each in own for name in vars(each)) | _KEPT
    for name in dir(base):
        if name not in written:
            is_called = callable(getattr(base, name))
            setattr(kind, name, _guarded(name, base) if is_called else property(_look_at(name, base)))
    for symbol, name in arithmetic.items():
        setattr(kind, f"__{name}__", _compute(symbol, is_reflected=False))
        setattr(kind, f"__r{name}__", _compute(symbol, is_reflected=True))
    for symbol, method in _COMPARING.items():
        setattr(kind, method, _compare(symbol))


_complete(Size, int)
_complete(SymbolicSize, int)
_complete(Fraction, float)
_complete(SymbolicFraction, float)
