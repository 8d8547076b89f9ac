"""Integers that know what they are made of, and tell whoever asks for their value.

Interpreted code is given a ``Size`` in place of each number that an operation returns. It may be moved about, added,
multiplied and handed to operations. Whatever else is done with one, also by code that nobody interprets, needs its
value and is a look at it: comparing, hashing, formatting, converting. A few functions written in C take an integer's
value without asking it; they are called with plain integers, by ``watch``.

Thunder's passes are not interpreted. They are given a ``SymbolicSize``, which only says that it is an integer, and is
none: code in C has to ask it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol, Self

from fusioncache.tracing.lengths.expressions import ARITHMETIC, COMPARISONS, Expression, Operation


class Witness(Protocol):
    """Whoever is told of what is looked at."""

    def see_value(self, size: Any, reason: str) -> None:
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


class SymbolicSize:
    """A number that is no integer but for who asks whether it is one.

    Attributes:
        value: it is.
        expression: what it is made of.
        witness: is told of looks at it.
    """

    __slots__ = ("expression", "value", "witness")

    if TYPE_CHECKING:  # what it has of an integer it gets below: see ``_complete``

        def __lt__(self, other: Any) -> bool: ...
        def __floordiv__(self, other: Any) -> Any: ...

    def __init__(self, value: int, expression: Expression, witness: Witness) -> None:
        self.value = value
        self.expression = expression
        self.witness = witness

    @property  # type: ignore[misc]
    def __class__(self) -> type[int]:  # type: ignore[override]
        """Returns what an integer has: code must not tell them apart."""
        return int

    def __neg__(self) -> SymbolicSize:
        """Returns zero less this."""
        return SymbolicSize(-self.value, Operation("-", 0, self.expression), self.witness)

    def __pos__(self) -> SymbolicSize:
        """Returns itself."""
        return self

    def __bool__(self) -> bool:
        """Compares with zero."""
        outcome = self.value != 0
        self.witness.see_comparison("!=", self.expression, 0, outcome)
        return outcome

    def __hash__(self) -> int:
        """Returns the hash of the value, to Thunder's bound symbols.

        Raises:
            TypeError: to anybody else. Who keeps something by its hash may keep it longer than the passes take.
        """
        if sys._getframe(1).f_code not in _hashes_of_bound_symbols():
            raise TypeError("a symbolic size is hashed")
        return hash(self.value)

    def __call__(self) -> SymbolicSize:
        """Returns itself: the number of a tensor's elements is called in torch, and is an attribute in Thunder."""
        return self

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        """Divides with a rest."""
        return self // other, self % other

    def __truediv__(self, other: Any) -> Any:
        """Divides: by a number greater than 0 to something that may be rounded up or down."""
        if type(other) is int and 0 < other < _EXACT and self < 2**32:
            return Quotient(self, other)
        self.witness.see_value(self, "divides it")
        return self.value / plain(other)

    def __reduce_ex__(self, _: Any) -> Any:
        """Copies as a plain integer."""
        self.witness.see_value(self, "copies it")
        return int, (self.value,)


_EXACT = 2**20
"""What a size below 2**32 is divided by so that the quotient, as a float, rounds up and down as the exact one does."""


@lru_cache(maxsize=1)
def _hashes_of_bound_symbols() -> frozenset[CodeType]:
    from thunder.core.symbol import BoundSymbol, BoundSymbolRHS
    from thunder.core.utils import FrozenDict

    functions: tuple[Any, ...] = (vars(BoundSymbol)["_hash"].func, BoundSymbolRHS.__hash__, FrozenDict.__hash__)
    return frozenset(each.__code__ for each in functions)


@lru_cache(maxsize=1)
def _proxy() -> type:
    """Returns the class of what stands for tensors and numbers in traces, which compute with sizes themselves."""
    from thunder.core.proxies import Proxy

    return Proxy


@lru_cache(maxsize=1)
def _variable() -> type:
    """Returns the class of what Thunder compares by name, with others of its kind."""
    from thunder.core.proxies import Variable

    return Variable


@dataclass(frozen=True, slots=True)
class Quotient:
    """A size divided by a plain integer, of which nothing may be asked but how it rounds.

    Attributes:
        size: what is divided.
        by: what it is divided by.
    """

    size: SymbolicSize
    by: int

    def __floor__(self) -> Any:
        """Returns the greatest integer that is not above it."""
        return self.size // self.by

    def __ceil__(self) -> Any:
        """Returns the least integer that is not below it."""
        return -(-self.size // self.by)


def plain(size: Any) -> Any:
    """Returns the value of a size, without a look at it, as a plain integer. Others are returned as they are."""
    if type(size) is SymbolicSize:
        return size.value
    return int.__int__(size) if type(size) is Size else size


def express(value: Any) -> Expression:
    """Returns the expression of an integer."""
    return value.expression if type(value) in _KINDS else int(value)


def is_whole(value: Any) -> bool:
    """Tells whether this is an integer of which the value or the expression is known."""
    return type(value) in (int, bool, *_KINDS)


_KINDS = (Size, SymbolicSize)
_COMPARING = {"==": "__eq__", "!=": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}


def _check_same_trace(one: Any, other: Any) -> None:
    """Has both traces refused that two sizes are from, of which one was left where it lasts."""
    if type(other) in _KINDS and other.witness is not one.witness:
        one.witness.refuse("meets a size of another trace")
        other.witness.refuse("meets a size of another trace")


def _compute(symbol: str, *, is_reflected: bool) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if isinstance(other, _proxy()):
            return NotImplemented
        if not is_whole(other):
            self.witness.see_value(self, f"computes {symbol} with a {type(other).__name__}")
            return NotImplemented if not isinstance(other, float | complex) else _of_plain(self, other)
        _check_same_trace(self, other)
        left, right = (other, self) if is_reflected else (self, other)
        if symbol in ("//", "%") and plain(right) == 0:
            self.witness.see_comparison("==", express(right), 0, True)
        expression = Operation(symbol, express(left), express(right))
        return type(self)(ARITHMETIC[symbol](plain(left), plain(right)), expression, self.witness)

    def _of_plain(self: Any, other: Any) -> Any:
        left, right = (other, plain(self)) if is_reflected else (plain(self), other)
        return ARITHMETIC[symbol](left, right)

    return method


def _compare(symbol: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if other is None or isinstance(other, str) or type(other) is _variable():
            return NotImplemented  # which no number is equal to
        if not is_whole(other):
            self.witness.see_value(self, f"compares it with a {type(other).__name__}")
            return COMPARISONS[symbol](plain(self), other)
        _check_same_trace(self, other)
        outcome = COMPARISONS[symbol](plain(self), plain(other))
        self.witness.see_comparison(symbol, express(self), express(other), outcome)
        return outcome

    return method


def _look(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        if args and isinstance(args[0], _proxy()):
            return NotImplemented
        self.witness.see_value(self, f"calls int.{name}")
        result = own(plain(self), *map(plain, args))
        if result is NotImplemented and isinstance(args[0], float | complex):
            return getattr(type(args[0])(plain(self)), name)(args[0])
        return result

    return method


def _look_at(name: str) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        self.witness.see_value(self, f"asks for int.{name}")
        return getattr(plain(self), name)

    return method


_KEPT = frozenset({
    "__new__", "__init__", "__class__", "__dict__", "__getattribute__", "__setattr__", "__delattr__", "__doc__",
    "__init_subclass__", "__subclasshook__", "__sizeof__", "__dir__", "__reduce__", "__reduce_ex__", "__getstate__",
    "from_bytes",
})  # fmt: skip
"""What does not look at the value."""


def _complete(kind: type) -> None:
    """Gives a class a method for everything that an integer can be asked, unless it has its own."""
    arithmetic = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod"}
    written = frozenset(vars(kind)) | _KEPT
    for name in dir(int):
        own = getattr(int, name)
        if name not in written:
            setattr(kind, name, _look(name, own) if callable(own) else property(_look_at(name)))
    for symbol, name in arithmetic.items():
        setattr(kind, f"__{name}__", _compute(symbol, is_reflected=False))
        setattr(kind, f"__r{name}__", _compute(symbol, is_reflected=True))
    for symbol, method in _COMPARING.items():
        setattr(kind, method, _compare(symbol))


_complete(Size)
_complete(SymbolicSize)
