"""Strict JSON: a reader requests every value by its type, and errors contain its location.

``decode`` returns a ``Value``. A reader requests the types that it expects, as in::

    sizes = decode(content, "signature").members()["sizes"]
    return tuple(size.integer() for size in sizes.items())

An unexpected value raises a ``ValueError`` such as ``signature.sizes[1] is 'big', not an integer from 0 to 9``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LARGEST = (1 << 63) - 1
"""The largest integer that is accepted unless a reader sets another limit: what SQLite and 64-bit sizes hold."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def encode(body: Mapping[str, Any]) -> bytes:
    """Returns a body as JSON without spaces, its fields in their order. Equal bodies have equal bytes."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def decode(content: bytes | str, name: str, **marks: int) -> Value:
    """Returns decoded JSON; bytes are read as UTF-8.

    Args:
        content: the JSON.
        name: its name in errors.
        marks: fields that identify the format, with the numbers that they must have. They are removed.

    Raises:
        ValueError: if it is not JSON, has a field twice, has a number that is not finite, or is of another format.
    """
    try:
        text = content if isinstance(content, str) else content.decode()
        value = Value(name, json.loads(text, object_pairs_hook=_fields_once, parse_constant=_refuse))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not strict JSON: {error}") from error
    for mark, number in marks.items():
        found = value.content.pop(mark, None) if type(value.content) is dict else None
        if type(found) is not int or found != number:
            raise ValueError(f"{name} is of {mark} {found!r}, not {number}")
    return value


def is_text(content: object) -> bool:
    """Returns whether an object is a string that UTF-8 can encode. One with a lone surrogate is not."""
    # ``isascii`` takes constant time, and the long texts of keys are mostly ASCII.
    return isinstance(content, str) and (content.isascii() or not _SURROGATE.search(content))


@dataclass(frozen=True, slots=True)
class Value:
    """A part of decoded JSON, with its location.

    Every method raises a ``ValueError`` that names the value if it is not of the requested type.

    Attributes:
        name: its location, such as ``recipe.steps[3]``.
        content: what ``json`` decoded.
    """

    name: str
    content: Any

    def members(self) -> dict[str, Value]:
        """Returns the values of an object's fields, by their names."""
        if type(self.content) is not dict:
            raise self.error("an object")
        return {name: Value(f"{self.name}.{name}", item) for name, item in self.content.items()}

    def items(self, count: int | None = None) -> tuple[Value, ...]:
        """Returns the items of a list; with a count, the list must have that many."""
        if type(self.content) is not list or count not in (None, len(self.content)):
            raise self.error("a list" if count is None else f"a list of {count}")
        return tuple(Value(f"{self.name}[{index}]", item) for index, item in enumerate(self.content))

    def integer(self, least: int = 0, most: int = LARGEST) -> int:
        """Returns an integer of this range. ``True`` and ``1.0`` are rejected."""
        if type(self.content) is not int or not least <= self.content <= most:
            raise self.error(f"an integer from {least} to {most}")
        return self.content

    def number(self) -> int | float:
        """Returns a finite number."""
        if type(self.content) is int:
            return self.integer(-LARGEST)
        if type(self.content) is not float or not math.isfinite(self.content):
            raise self.error("a finite number")
        return self.content

    def boolean(self) -> bool:
        """Returns a truth value."""
        if type(self.content) is not bool:
            raise self.error("true or false")
        return self.content

    def text(self, pattern: re.Pattern[str] | None = None) -> str:
        """Returns a string, which must match the pattern as a whole if one is given."""
        if not is_text(self.content):
            raise self.error("a text")
        if pattern is not None and not pattern.fullmatch(self.content):
            raise self.error(f"a text like {pattern.pattern}")
        return self.content

    def error(self, expected: str) -> ValueError:
        """Returns the error for a value that is not the expected one."""
        shown = repr(self.content)
        return ValueError(f"{self.name} is {shown if len(shown) <= 60 else shown[:60] + '...'}, not {expected}")


def _fields_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("an object has a field twice")
    return fields


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")
