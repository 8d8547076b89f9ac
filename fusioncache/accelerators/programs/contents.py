"""The contents of builtin types as those see them from whose classes others are derived: below what these override."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

from fusioncache.accelerators.programs.containers import (
    ordered_pairs,
    write_fields,
    write_items,
    write_pairs,
    write_set,
)
from fusioncache.accelerators.programs.introspection import by_identity, find_in_class
from fusioncache.accelerators.programs.writer import Handler, Writer


def write_nothing(writer: Writer, value: object) -> None:
    """Writes the content of an object that has none."""


def _literal(read: Callable[[Any], Any]) -> Handler:
    """Returns what writes the exact value of a builtin type that is in a value of a derived one."""

    def write(writer: Writer, value: Any) -> None:
        writer.write(read(value))

    return write


def _sequence(iterate: Callable[[Any], Iterable[object]], opening: str = "[", closing: str = "]") -> Handler:
    return lambda writer, value: write_items(writer, iterate(value), opening, closing)


def _write_tuple(writer: Writer, value: tuple[object, ...]) -> None:
    """Writes the items of a tuple, whose class may have names for them."""
    names = find_in_class(type(value), "_fields")
    write_fields(writer, names if type(names) is tuple else (), tuple.__iter__(value))


def _pairs(read: Callable[[Any], Iterable[tuple[object, object]]]) -> Handler:
    return lambda writer, value: write_pairs(writer, read(value))


def _set(iterate: Callable[[Any], Iterable[object]]) -> Handler:
    return lambda writer, value: write_set(writer, iterate(value))


def _fields(cls: type, *names: str) -> Handler:
    """Returns what writes fields that a class written in C has."""
    fields = [vars(cls)[name].__get__ for name in names]
    return lambda writer, value: writer.write(tuple(read(value) for read in fields))


def _all(*handlers: Handler) -> Handler:
    def write(writer: Writer, value: Any) -> None:
        for handler in handlers:
            handler(writer, value)
            writer.parts.append(" ")

    return write


CONTENTS: dict[int, Handler] = by_identity(
    (object, write_nothing),
    (types.SimpleNamespace, write_nothing),
    (int, _literal(int.__index__)),
    (float, _literal(float.__float__)),
    (complex, _literal(complex.__complex__)),
    (str, _literal(str.__str__)),
    (bytes, _literal(bytes.__bytes__)),
    (tuple, _write_tuple),
    (list, _sequence(list.__iter__)),
    (dict, _pairs(dict.items)),
    (set, _set(set.__iter__)),
    (frozenset, _set(frozenset.__iter__)),
    (collections.OrderedDict, _pairs(ordered_pairs)),
    (collections.defaultdict, _all(_fields(collections.defaultdict, "default_factory"), _pairs(dict.items))),
    (
        collections.deque,
        _all(_fields(collections.deque, "maxlen"), _sequence(collections.deque.__iter__)),
    ),
    (functools.partial, _fields(functools.partial, "func", "args", "keywords")),
    (types.GenericAlias, _fields(types.GenericAlias, "__origin__", "__args__")),
    (property, _fields(property, "fget", "fset", "fdel")),
    (staticmethod, _fields(staticmethod, "__func__")),
    (classmethod, _fields(classmethod, "__func__")),
)
"""What writes the content of a builtin type that a class is derived from, by the type's identity."""
