"""What Thunder's passes looked at while they went over a program, as data: where they do the same in another process.

What is stored is JSON::

    outline  = { format, passes, sizes: [ sizes of the arguments of each program ] }
    passes   = { values: [ value ], sizes: [ [ place, [ number of a value ] ] ], looks: [ look ],
                 unequal: [ [ [ number ], [ number ] ] ], decisions: [ decision ], expressions: [ number ],
                 shapes: [ [ name, [ number ] ] ] }
    value    = integer | number with a point, as a text | [ position, name ] | [ symbol, number, number ]
    look     = [ symbol, number, number, outcome, reason, place of source ]
    decision = { function, args: [ asked ], answer }
    asked    = null | true | false | float | { size: number } | { shape: [ number ], device, dtype, requires_grad }

Each value is there once, behind those that it is made of, and is its number from then on. So no file is nested deeper
than this, and what is shared stays so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fusioncache.accelerators.sizes.arguments import ArgumentSizes, Place
from fusioncache.accelerators.sizes.decisions import DECIDERS, Asked, AskedTensor, Decision
from fusioncache.accelerators.sizes.expressions import ARITHMETIC, COMPARISONS, Expression, Float, Number, Operation
from fusioncache.accelerators.sizes.journal import Look
from fusioncache.accelerators.sizes.pass_journal import PassJournal
from fusioncache.ir import strict_json
from fusioncache.ir.strict_json import LARGEST, Value

FAMILY_FORMAT = 4
"""Of a form, and of what is stored for it: what is written here, and in ``accelerators/sizes/kept_families.py``."""

_FIELDS = ("values", "sizes", "looks", "unequal", "decisions", "expressions", "shapes")
_TYPE = re.compile(r"[a-z]\w*")
_FLOAT = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


def encode_outline(passes: PassJournal, sizes: Sequence[ArgumentSizes]) -> bytes:
    """Returns what passes looked at, and the sizes of the programs that a family is made of. Equal ones are equal.

    Raises:
        ValueError: if there is a number in it that JSON has not.
    """
    body = {"format": FAMILY_FORMAT, "passes": encode_passes(passes), "sizes": list(map(encode_sizes, sizes))}
    return strict_json.encode(body)


def decode_outline(content: bytes) -> tuple[PassJournal, tuple[ArgumentSizes, ...]]:
    """Returns what ``encode_outline`` was given.

    Raises:
        ValueError: if this is anything else.
    """
    passes, listed = strict_json.decode(content, "family", format=FAMILY_FORMAT).fields("passes", "sizes")
    journal, sizes = decode_passes(passes), tuple(map(decode_sizes, listed.items()))
    if any(_count_sizes(each) != _count_sizes(journal.sizes) for each in sizes):
        raise listed.error("sizes of the same arguments")
    return journal, sizes


def encode_passes(passes: PassJournal) -> dict[str, Any]:
    """Returns what passes looked at as a field of a body. Equal journals have equal fields.

    Raises:
        ValueError: if there is a number in it that JSON has not.
    """
    values = _Values()
    number = values.number
    written = {
        "sizes": [[place, [number(size) for size in sizes]] for place, sizes in passes.sizes.items()],
        "looks": [
            [look.symbol, number(look.left), number(look.right), look.outcome, look.reason, look.place]
            for look in passes.looks
        ],
        "unequal": [[list(map(number, one)), list(map(number, other))] for one, other in passes.unequal],
        "decisions": [_encode_decision(each, values) for each in passes.decisions],
        "expressions": [number(each) for each in sorted(passes.expressions, key=repr)],
        "shapes": [[name, list(map(number, shape))] for name, shape in sorted(passes.shapes.items())],
    }
    return {"values": values.written, **written}


def decode_passes(content: Value) -> PassJournal:
    """Returns what ``encode_passes`` was given.

    Raises:
        ValueError: if this is anything else.
    """
    values, sizes, looks, unequal, decisions, expressions, shapes = content.fields(*_FIELDS)
    known = _decode_values(values)
    places = decode_places(sizes)
    arguments = {place: tuple(_take(size, known) for size in each.items()) for place, each in places.items()}
    numbers = [size for each in arguments.values() for size in each if isinstance(size, Number)]
    if len({size.position for size in numbers}) != len(numbers) or not set(numbers) >= _find_numbers(known):
        raise sizes.error("all numbers, each once")
    return PassJournal(
        {place: tuple(map(_check_size, each)) for place, each in arguments.items()},
        tuple(_decode_look(look, known) for look in looks.items()),
        tuple(_decode_pair(pair, known) for pair in unequal.items()),
        tuple(_decode_decision(decision, known) for decision in decisions.items()),
        frozenset(_take(each, known) for each in expressions.items()),
        dict(_decode_shape(pair, known) for pair in shapes.items()),
    )


def _count_sizes(sizes: Mapping[Place, tuple[Any, ...]]) -> Mapping[Place, int]:
    return {place: len(each) for place, each in sizes.items()}


def encode_sizes(sizes: ArgumentSizes) -> list[Any]:
    """Returns the sizes of arguments as a field of a body."""
    return [[place, list(each)] for place, each in sizes.items()]


def decode_sizes(content: Value) -> ArgumentSizes:
    """Returns what ``encode_sizes`` was given.

    Raises:
        ValueError: if this is anything else.
    """
    return {place: each.integers() for place, each in decode_places(content).items()}


def decode_places(content: Value) -> Mapping[Place, Value]:
    """Returns what there is for each argument.

    Raises:
        ValueError: if this is no list of places with something for each, or has one twice.
    """
    pairs = [pair.items(2) for pair in content.items()]
    found = {_decode_place(place): each for place, each in pairs}
    if len(found) != len(pairs):
        raise content.error("a list with each place once")
    return found


def _decode_place(place: Value) -> Place:
    if type(place.content) is not list:
        return _decode_key(place)
    keys = tuple(map(_decode_key, place.items()))
    if len(keys) < 2:
        raise place.error("a place in an argument")
    return keys


def _decode_key(key: Value) -> int | str:
    return key.integer() if type(key.content) is int else key.text()


class _Values:
    """Expressions, and the number of each.

    Attributes:
        written: them, in their order.
    """

    def __init__(self) -> None:
        self.written: list[Any] = []
        self._numbers: dict[Expression, int] = {}

    def number(self, expression: Expression) -> int:
        """Returns the number of an expression, which is written down if it has none yet."""
        if expression not in self._numbers:
            content = self._write(expression)
            self._numbers[expression] = len(self.written)
            self.written.append(content)
        return self._numbers[expression]

    def _write(self, expression: Expression) -> Any:
        match expression:
            case Number(position, name):
                return [position, name]
            case Operation(symbol, left, right):
                return [symbol, self.number(left), self.number(right)]
            case Float(text):
                return text
        return expression


def _decode_values(content: Value) -> list[Expression]:
    known: list[Expression] = []
    for value in content.items():
        known.append(_decode_value(value, known))
    return known


def _decode_value(value: Value, known: list[Expression]) -> Expression:
    if isinstance(value.content, str):
        return Float(repr(float(value.text(_FLOAT))))
    if not isinstance(value.content, list):
        return value.integer(-LARGEST)
    if len(value.content) == 2:
        position, name = value.items(2)
        return Number(position.integer(), name.text())
    symbol, left, right = value.items(3)
    return Operation(_one_of(symbol, ARITHMETIC), _take(left, known), _take(right, known))


def _take(value: Value, known: list[Expression]) -> Expression:
    return known[value.integer(0, len(known) - 1)]


def _one_of(value: Value, words: Iterable[str]) -> str:
    if value.text() not in words:
        raise value.error(f"one of {', '.join(sorted(words))}")
    return value.text()


def _find_numbers(known: Iterable[Expression]) -> set[Number]:
    return {each for each in known if isinstance(each, Number)}


def _check_size(size: Expression) -> int | Number:
    if isinstance(size, Operation | Float):
        raise ValueError(f"a size of an argument is computed: {size}")
    return size


def _decode_look(value: Value, known: list[Expression]) -> Look:
    symbol, left, right, outcome, reason, place = value.items(6)
    compared = _one_of(symbol, COMPARISONS), _take(left, known), _take(right, known)
    return Look(*compared, outcome.boolean(), reason.text(), place.text())


def _decode_pair(value: Value, known: list[Expression]) -> tuple[tuple[Expression, ...], tuple[Expression, ...]]:
    one, other = (tuple(_take(each, known) for each in side.items()) for side in value.items(2))
    if len(one) != len(other):
        raise value.error("two lists of one length")
    return one, other


def _decode_shape(value: Value, known: list[Expression]) -> tuple[str, tuple[Expression, ...]]:
    name, sizes = value.items(2)
    return name.text(), tuple(_take(each, known) for each in sizes.items())


def _decode_decision(value: Value, known: list[Expression]) -> Decision:
    function, args, answer = value.fields("function", "args", "answer")
    asked = tuple(_decode_asked(arg, known) for arg in args.items())
    return Decision(_one_of(function, DECIDERS), asked, answer.text())


def _encode_decision(decision: Decision, values: _Values) -> dict[str, Any]:
    asked = [_encode_asked(each, values) for each in decision.args]
    return {"function": decision.function, "args": asked, "answer": decision.answer}


def _encode_asked(asked: Asked, values: _Values) -> Any:
    if isinstance(asked, AskedTensor):
        shape = [values.number(size) for size in asked.shape]
        about = {"device": asked.device, "dtype": asked.dtype, "requires_grad": asked.requires_grad}
        return {"shape": shape, **about}
    return asked if asked is None or isinstance(asked, bool | float) else {"size": values.number(asked)}


def _decode_asked(value: Value, known: list[Expression]) -> Asked:
    if value.has("size"):
        (size,) = value.fields("size")
        return _take(size, known)
    if isinstance(value.content, dict):
        shape, device, dtype, requires_grad = value.fields("shape", "device", "dtype", "requires_grad")
        sizes = tuple(_take(size, known) for size in shape.items())
        return AskedTensor(sizes, device.text(), dtype.text(_TYPE), requires_grad.boolean())
    if value.content is None or type(value.content) is bool:
        return value.content
    return float(value.number())
