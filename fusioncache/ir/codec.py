"""JSON encoding of values by their types. Decoding returns the encoded value and rejects anything else.

``encode`` writes any dataclass, and ``decode`` reads it again by the types of its fields::

    content = encode(request, format=2)
    request = decode(Request, content, "request", format=2)

- A dataclass is an object with a field for each of its fields. A field that has its default is left out.
- A union is decoded by the kind of the JSON value, so no two of its types may have the same kind. Dataclasses are
  distinguished by their fields, or by a class variable ``TAG``, which is written as the field ``kind``.
- An integer is from 0 to ``strict_json.LARGEST``, unless it is ``Annotated[int, range(...)]``. A text that is
  ``Annotated[str, re.compile(...)]`` matches the pattern. Any other function in ``Annotated`` has to return True.
- A class's method ``validate`` is called for each decoded value. It raises a ``ValueError`` if the value is invalid
  although its fields have the right types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAliasType, Union, get_args, get_origin, get_type_hints

from fusioncache.ir import strict_json
from fusioncache.ir.strict_json import Value

_Reader = Callable[[Value], Any]
_HEX = re.compile("(?:[0-9a-f]{2})*")


def encode(value: Any, **marks: int) -> bytes:
    """Returns a dataclass as JSON. Equal values have equal bytes.

    Args:
        value: the dataclass.
        marks: fields that identify the format, as in ``strict_json.decode``.

    Raises:
        ValueError: if it contains a number that is not finite.
    """
    return strict_json.encode({**marks, **to_json(value)})


def decode[T](type_: type[T], content: bytes | str, name: str, **marks: int) -> T:
    """Returns the dataclass that was encoded.

    Args:
        type_: its class.
        content: what ``encode`` returned.
        name: its name in errors.
        marks: fields that it must have, with these values.

    Raises:
        ValueError: if the content is anything else, or of another format.
    """
    found: T = _reader_of(type_)(strict_json.decode(content, name, **marks))
    return found


def to_json(value: Any) -> Any:
    """Returns a value in the form that ``json`` writes."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if is_dataclass(value):
        items = ((name, getattr(value, name), default) for name, default in _defaults_of(type(value)).items())
        written = {name: to_json(item) for name, item, default in items if item != default}
        tag = getattr(type(value), "TAG", None)
        return written if tag is None else {"kind": tag, **written}
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in sorted(value.items())}
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} cannot be encoded")


def _make_reader(type_: Any) -> _Reader:
    origin, args = get_origin(type_), get_args(type_)
    if isinstance(type_, TypeAliasType):  # evaluated late, as it may be recursive
        return lambda value: _reader_of(type_.__value__)(value)
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
        readers = tuple(map(_reader_of, args))
        return lambda value: tuple([read(item) for read, item in zip(readers, value.items(len(args)), strict=True)])
    if origin in (tuple, Sequence):
        read_item = _reader_of(args[0])
        return lambda value: tuple([read_item(item) for item in value.items()])
    return _PLAIN[type_]


_reader_of: Callable[[Any], _Reader] = cache(_make_reader)
"""Returns the function that reads values of a type."""

_PLAIN: Mapping[Any, _Reader] = {
    NoneType: lambda value: None,  # only in a union, which checked the value
    bool: Value.boolean,
    int: Value.integer,
    float: Value.number,
    str: Value.text,
    bytes: lambda value: bytes.fromhex(value.text(_HEX)),
}


def _make_checked_reader(type_: Any, *checks: range | re.Pattern[str] | Callable[[Any], bool]) -> _Reader:
    if isinstance(checks[0], range):
        limits = checks[0]
        return lambda value: value.integer(limits.start, limits.stop - 1)
    read_any = _reader_of(type_)

    def read_checked(value: Value) -> Any:
        for check in checks:
            if isinstance(check, re.Pattern):
                value.text(check)
            elif callable(check) and not check(read_any(value)):
                raise value.error(f"one of which {check.__name__}() is true")
        return read_any(value)

    return read_checked


def _make_mapping_reader(key_type: Any, type_: Any) -> _Reader:
    read_key, read_member = _reader_of(key_type), _reader_of(type_)

    def read_mapping(value: Value) -> Mapping[str, Any]:
        return {read_key(Value(value.name, name)): read_member(item) for name, item in value.members().items()}

    return read_mapping


def _make_choice_reader(choices: Mapping[str, Any]) -> _Reader:
    def read_choice(value: Value) -> Any:
        if value.text() not in choices:
            raise value.error(f"one of {', '.join(choices)}")
        return choices[value.content]

    return read_choice


def _make_dataclass_reader(type_: Any) -> _Reader:
    has_form, readers, validate = _make_form_check(type_), dict[str, _Reader](), getattr(type_, "validate", None)

    def read_fields(value: Value) -> Any:
        if not has_form(value.content):
            raise value.error(f"an object with the fields {', '.join(_defaults_of(type_))}")
        if not readers:  # late, as a field may have the type of its own class
            hints = get_type_hints(type_, include_extras=True)
            readers.update((name, _reader_of(hints[name])) for name in _defaults_of(type_))
        members = {name: member for name, member in value.members().items() if name in readers}
        made = type_(**{name: readers[name](member) for name, member in members.items()})
        if validate is not None:
            try:
                validate(made)
            except ValueError as error:
                raise ValueError(f"{value.name} {error}") from error
        return made

    return read_fields


def _make_union_reader(types: Sequence[Any]) -> _Reader:
    checks = [(_make_form_check(type_), type_) for type_ in types]

    def read_one(value: Value) -> Any:
        fitting = [type_ for has_form, type_ in checks if has_form(value.content)]
        if len(fitting) != 1:
            raise value.error(f"one of {', '.join(getattr(type_, '__name__', str(type_)) for type_ in types)}")
        return _reader_of(fitting[0])(value)

    return read_one


def _make_form_check(type_: Any) -> Callable[[Any], bool]:
    """Returns a function that checks the Python class of decoded JSON, and for a dataclass its fields and its tag."""
    origin = get_origin(type_)
    if origin is Annotated:
        return _make_form_check(get_args(type_)[0])
    if is_dataclass(type_):
        defaults, tags = _defaults_of(type_), {"kind": type_.TAG} if hasattr(type_, "TAG") else {}
        required = {*tags, *(name for name in defaults if defaults[name] is MISSING)}
        known = {*tags, *defaults}
        return lambda content: (
            type(content) is dict and required <= content.keys() <= known and tags.items() <= content.items()
        )
    if origin in (Mapping, tuple, Sequence):
        kind: type = dict if origin is Mapping else list
    else:
        kind = type_ if type_ in (NoneType, bool, int, float) else str
    return lambda content: type(content) is kind


def _list_defaults(type_: Any) -> Mapping[str, Any]:
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(type_)
    }


_defaults_of: Callable[[Any], Mapping[str, Any]] = cache(_list_defaults)
"""Returns the fields of a dataclass with their defaults, ``MISSING`` where there is none."""
