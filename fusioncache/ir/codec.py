"""JSON encoding of values by their types. Decoding returns the encoded value and rejects anything else.

``encode`` writes any dataclass, and ``decode`` reads it again by the types of its fields::

    content = encode(request, format=2)
    request = decode(Request, content, "request", format=2)

- A dataclass is an object with a field for each of its fields. A field that has its default is left out.
- A union is decoded by the kind of the JSON value, so no two of its types may have the same kind. Dataclasses are
  distinguished by their fields, or by a class variable ``TAG``, which is written as the field ``kind``.
- An integer is from 0 to ``LARGEST_INTEGER``, unless it is ``Annotated[int, range(...)]``. A text that is
  ``Annotated[str, re.compile(...)]`` matches the pattern. Any other function in ``Annotated`` has to return True.
- A class's method ``validate`` is called for each decoded value. It raises a ``ValueError`` if the value is invalid
  although its fields have the right types.

An unexpected value raises a ``ValueError`` such as ``request.sizes[1] is 'big', not an integer from 0 to 9``: the
function that reads a part writes what it expected, and each function around it writes the location before that.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import repeat
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAliasType, Union, get_args, get_origin, get_type_hints

LARGEST_INTEGER = (1 << 63) - 1
"""The largest integer that is accepted unless its type has a range: what SQLite and 64-bit sizes hold."""

_Reader = Callable[[Any], Any]
"""Returns a value that was decoded from JSON, such as a list, as one of the reader's type; or raises a ValueError."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_HEX = re.compile("(?:[0-9a-f]{2})*")
_AS_IN_JSON = frozenset({NoneType, bool, int, float, str})


def encode(value: Any, **marks: int) -> bytes:
    """Returns a dataclass as JSON without spaces. Equal values have equal bytes.

    Args:
        value: the dataclass.
        marks: fields that identify the format, with their numbers.

    Raises:
        ValueError: if it contains a number that is not finite.
    """
    return json.dumps({**marks, **to_json(value)}, separators=(",", ":"), allow_nan=False).encode()


def decode[T](type_: type[T], content: bytes | str, name: str, **marks: int) -> T:
    """Returns the dataclass that was encoded.

    Args:
        type_: its class.
        content: what ``encode`` returned.
        name: its name in errors.
        marks: fields that it must have, with these values.

    Raises:
        ValueError: if it is not JSON, has a field twice, is of another format, or is anything else.
    """
    try:
        text = content if isinstance(content, str) else content.decode()
        body = json.loads(text, object_pairs_hook=_fields_once, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not strict JSON: {error}") from error
    for mark, number in marks.items():
        found = body.pop(mark, None) if type(body) is dict else None
        if type(found) is not int or found != number:
            raise ValueError(f"{name} is of {mark} {found!r}, not {number}")
    try:
        value: T = _reader_of(type_)(body)
    except ValueError as error:
        raise ValueError(f"{name}{error}") from error.__cause__
    return value


def is_text(content: object) -> bool:
    """Returns whether an object is a string that UTF-8 can encode. One with a lone surrogate is not."""
    # ``isascii`` takes constant time, and the long texts of keys are mostly ASCII.
    return isinstance(content, str) and (content.isascii() or not _SURROGATE.search(content))


def to_json(value: Any) -> Any:
    """Returns a value in the form that ``json`` writes."""
    if type(value) in _AS_IN_JSON:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if is_dataclass(value):
        tag = getattr(type(value), "TAG", "")
        written = {"kind": tag} if tag else {}
        for name, default in _defaults_of(type(value)).items():
            item = getattr(value, name)
            if item != default:
                written[name] = to_json(item)
        return written
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in sorted(value.items())}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"{type(value).__name__} cannot be encoded")


def _fields_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) != len(pairs):
        raise ValueError("an object has a field twice")
    return body


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _unexpected(content: Any, expected: str) -> ValueError:
    shown = repr(content)
    return ValueError(f" is {shown if len(shown) <= 60 else shown[:60] + '...'}, not {expected}")


def _make_reader(type_: Any) -> _Reader:
    origin, args = get_origin(type_), get_args(type_)
    if isinstance(type_, TypeAliasType):  # evaluated late, as it may be recursive
        return lambda content: _reader_of(type_.__value__)(content)
    if is_dataclass(type_):
        return _make_dataclass_reader(type_)
    if isinstance(type_, type) and issubclass(type_, Enum):
        return _make_choice_reader({member.value: member for member in type_})
    if origin is Literal:
        return _make_choice_reader({each: each for each in args})
    if origin in (Union, UnionType):
        return _make_union_reader(args)
    if origin is Annotated:
        return _make_checked_reader(*args)
    if origin is Mapping:
        return _make_mapping_reader(*args)
    if origin is tuple and args[-1] is not Ellipsis:
        return _make_list_reader(tuple(map(_reader_of, args)), len(args))
    if origin in (tuple, Sequence):
        return _make_list_reader(repeat(_reader_of(args[0])))
    return _PLAIN[type_]


_reader_of: Callable[[Any], _Reader] = cache(_make_reader)
"""Returns the function that reads values of a type."""


def _read_boolean(content: Any) -> bool:
    if type(content) is not bool:
        raise _unexpected(content, "true or false")
    return content


def _read_integer(content: Any, least: int = 0, most: int = LARGEST_INTEGER) -> int:
    if type(content) is not int or not least <= content <= most:  # neither True nor 1.0
        raise _unexpected(content, f"an integer from {least} to {most}")
    return content


def _read_number(content: Any) -> int | float:
    if type(content) is int:
        return _read_integer(content, -LARGEST_INTEGER)
    if type(content) is not float or not math.isfinite(content):
        raise _unexpected(content, "a finite number")
    return content


def _read_text(content: Any, pattern: re.Pattern[str] | None = None) -> str:
    if not is_text(content):
        raise _unexpected(content, "a text")
    if pattern is not None and not pattern.fullmatch(content):
        raise _unexpected(content, f"a text like {pattern.pattern}")
    return content


_PLAIN: Mapping[Any, _Reader] = {
    NoneType: lambda content: None,  # only in a union, which checked it
    bool: _read_boolean,
    int: _read_integer,
    float: _read_number,
    str: _read_text,
    bytes: lambda content: bytes.fromhex(_read_text(content, _HEX)),
}


def _make_checked_reader(type_: Any, *checks: range | re.Pattern[str] | Callable[[Any], bool]) -> _Reader:
    if isinstance(checks[0], range):
        limits = checks[0]
        return lambda content: _read_integer(content, limits.start, limits.stop - 1)
    read_any = _reader_of(type_)

    def read_checked(content: Any) -> Any:
        value = read_any(content)
        for check in checks:
            if isinstance(check, re.Pattern):
                _read_text(content, check)
            elif callable(check) and not check(value):
                raise _unexpected(content, f"one of which {check.__name__}() is true")
        return value

    return read_checked


def _make_list_reader(readers: Iterable[_Reader], count: int | None = None) -> _Reader:
    """Returns a reader of lists with one reader for each item, and with this number of items if one is given."""

    def read_items(content: Any) -> tuple[Any, ...]:
        if type(content) is not list or count not in (None, len(content)):
            raise _unexpected(content, f"a list of {count}" if count else "a list")
        found: list[Any] = []
        try:
            for read, item in zip(readers, content, strict=False):
                found.append(read(item))
        except ValueError as error:
            raise ValueError(f"[{len(found)}]{error}") from error.__cause__
        return tuple(found)

    return read_items


def _make_mapping_reader(key_type: Any, type_: Any) -> _Reader:
    read_key, read_member = _reader_of(key_type), _reader_of(type_)

    def read_mapping(content: Any) -> Mapping[str, Any]:
        if type(content) is not dict:
            raise _unexpected(content, "an object")
        members = _read_members(content, dict.fromkeys(content, read_member))
        return {read_key(name): member for name, member in members.items()}

    return read_mapping


def _read_members(content: Mapping[str, Any], readers: Mapping[str, _Reader]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, item in content.items():
        try:
            found[name] = readers[name](item)
        except ValueError as error:
            raise ValueError(f".{name}{error}") from error.__cause__
    return found


def _make_choice_reader(choices: Mapping[str, Any]) -> _Reader:
    def read_choice(content: Any) -> Any:
        if _read_text(content) not in choices:
            raise _unexpected(content, f"one of {', '.join(choices)}")
        return choices[content]

    return read_choice


def _make_dataclass_reader(type_: Any) -> _Reader:
    has_form, tag, validate = _form_of(type_), getattr(type_, "TAG", None), getattr(type_, "validate", None)
    readers: dict[str, _Reader] = {}

    def read_fields(content: Any) -> Any:
        if type(content) is not dict or not has_form(content):
            raise _unexpected(content, f"an object with the fields {', '.join(_defaults_of(type_))}")
        if not readers:  # late, as a field may have the type of its own class
            hints = get_type_hints(type_, include_extras=True)
            readers.update((name, _reader_of(hints[name])) for name in _defaults_of(type_))
        if tag is not None:
            content = {name: item for name, item in content.items() if name in readers}
        members = _read_members(content, readers)
        try:
            made = type_(**members)
            if validate is not None:
                validate(made)
        except ValueError as error:
            raise ValueError(f" {error}") from error
        return made

    return read_fields


def _make_union_reader(types: Sequence[Any]) -> _Reader:
    by_class: dict[type, list[Any]] = {}
    for type_ in types:
        by_class.setdefault(_class_in_json(type_), []).append(type_)

    def read_one(content: Any) -> Any:
        fitting = by_class.get(type(content), [])
        if len(fitting) > 1:
            fitting = [type_ for type_ in fitting if _form_of(type_)(content)]
        if len(fitting) != 1:
            raise _unexpected(content, f"one of {', '.join(getattr(type_, '__name__', str(type_)) for type_ in types)}")
        return _reader_of(fitting[0])(content)

    return read_one


def _class_in_json(type_: Any) -> type:
    """Returns the Python class that ``json`` decodes for values of a type."""
    origin = get_origin(type_)
    if origin is Annotated:
        return _class_in_json(get_args(type_)[0])
    if is_dataclass(type_) or origin is Mapping:
        return dict
    if origin in (tuple, Sequence):
        return list
    kind: type = type_ if type_ in (NoneType, bool, int, float) else str
    return kind


@cache
def _form_of(type_: Any) -> Callable[[Mapping[str, Any]], bool]:
    """Returns a function that checks the fields of decoded JSON, and the tag, for a dataclass."""
    defaults, tags = _defaults_of(type_), {"kind": type_.TAG} if hasattr(type_, "TAG") else {}
    required = {*tags, *(name for name in defaults if defaults[name] is MISSING)}
    known = {*tags, *defaults}
    counts = range(len(required), len(known) + 1)

    def has_form(content: Mapping[str, Any]) -> bool:
        # The number of fields distinguishes most classes of a union, and takes less time to compare than their names.
        return len(content) in counts and required <= content.keys() <= known and tags.items() <= content.items()

    return has_form


def _list_defaults(type_: Any) -> Mapping[str, Any]:
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(type_)
    }


_defaults_of: Callable[[Any], Mapping[str, Any]] = cache(_list_defaults)
"""Returns the fields of a dataclass with their defaults, ``MISSING`` where there is none."""
