"""Containers: their type, their order, and which of them are one and the same."""

from __future__ import annotations

import collections
import gc
import re
import sys
import types
import typing
import weakref
from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any

import torch

from fusioncache.accelerators.programs.introspection import by_identity, contents_of_module
from fusioncache.accelerators.programs.literals import write_name
from fusioncache.accelerators.programs.writer import Handler, Writer
from fusioncache.ir.errors import Declined, Scope


def write_items(writer: Writer, items: Iterable[object], opening: str = "[", closing: str = "]") -> None:
    """Writes items between brackets, in their order."""
    parts = writer.parts
    parts.append(opening)
    for item in items:
        writer.write(item)
        parts.append(", ")
    parts.append(closing)


def write_fields(writer: Writer, names: Iterable[object], items: Iterable[object]) -> None:
    """Writes the items of a tuple in their order, each of which may have a name."""
    parts = writer.parts
    parts.append("(")
    for name, item in zip(chain(names, repeat(None)), items, strict=False):
        writer.write_named(name, item)
        parts.append(", ")
    parts.append(")")


def write_pairs(writer: Writer, pairs: Iterable[tuple[object, object]]) -> None:
    """Writes the pairs of a dict in their order."""
    parts = writer.parts
    parts.append("{")
    for key, value in pairs:
        writer.write_name(key)
        parts.append(": ")
        writer.write_named(key, value)
        parts.append(", ")
    parts.append("}")


def write_set(writer: Writer, items: Iterable[object]) -> None:
    """Writes the items of a set, sorted by what each is by itself: a set has no order of its own."""
    parts = writer.parts
    parts.append("{")
    for _, item in sorted(((writer.write_alone(item), item) for item in items), key=lambda pair: pair[0]):
        writer.write(item)
        parts.append(", ")
    parts.append("}")


def ordered_pairs(value: Any) -> list[tuple[object, object]]:
    """Returns the pairs of an ``OrderedDict`` in the order that it keeps beside that of the dict below it.

    The keys' own hashes and equalities are not asked: an ``OrderedDict`` that hands out its values would ask them.
    """
    pairs = {id(key): (key, item) for key, item in dict.items(value)}
    return [pairs[id(key)] for key in collections.OrderedDict.__iter__(value)]


def _write_list(writer: Writer, value: list) -> None:
    if writer.enter(value):
        write_items(writer, value)


def _write_tuple(writer: Writer, value: tuple) -> None:
    write_items(writer, value, "(", ")")


def _write_dict(writer: Writer, value: dict) -> None:
    if writer.enter(value):
        write_pairs(writer, value.items())


def _write_plain_set(writer: Writer, value: set) -> None:
    if writer.enter(value):
        writer.parts.append("set")
        write_set(writer, value)


def _write_frozenset(writer: Writer, value: frozenset) -> None:
    writer.parts.append("frozenset")
    write_set(writer, value)


def _write_ordered_dict(writer: Writer, value: Any) -> None:
    if writer.enter(value):
        writer.parts.append("OrderedDict")
        write_pairs(writer, ordered_pairs(value))
        if value.__dict__:
            write_pairs(writer, value.__dict__.items())


def _write_default_dict(writer: Writer, value: Any) -> None:
    if writer.enter(value):
        writer.parts.append("defaultdict of ")
        writer.write(value.default_factory)
        write_pairs(writer, value.items())


def _write_deque(writer: Writer, value: Any) -> None:
    if writer.enter(value):
        writer.parts.append(f"deque of {value.maxlen} ")
        write_items(writer, value)


def _write_byte_array(writer: Writer, value: bytearray) -> None:
    if writer.enter(value):
        writer.parts.append("bytearray ")
        writer.write(bytes(value))


def _write_mapping_proxy(writer: Writer, value: types.MappingProxyType) -> None:
    writer.parts.append("mappingproxy ")
    writer.write(gc.get_referents(value)[0])  # its own methods may be those of anybody's mapping


def _write_namespace(writer: Writer, value: Any) -> None:
    if writer.enter(value):
        writer.parts.append("SimpleNamespace")
        write_pairs(writer, value.__dict__.items())


def _write_size(writer: Writer, value: torch.Size) -> None:
    write_items(writer, value, "Size(", ")")


def _write_range(writer: Writer, value: range) -> None:
    write_items(writer, (value.start, value.stop, value.step), "range(", ")")


def _write_slice(writer: Writer, value: slice) -> None:
    write_items(writer, (value.start, value.stop, value.step), "slice(", ")")


def _write_reference(writer: Writer, value: weakref.ReferenceType) -> None:
    writer.parts.append("weak reference ")
    target = value()
    if target is None:
        writer.parts.append("to nothing")
    else:
        writer.write((target, value.__callback__))


def _write_pattern(writer: Writer, value: re.Pattern) -> None:
    writer.parts.append(f"pattern {value.flags} ")
    writer.write(value.pattern)


def _write_generic_alias(writer: Writer, value: Any) -> None:
    writer.parts.append("generic ")
    writer.write((value.__origin__, value.__args__))


def _write_union(writer: Writer, value: types.UnionType) -> None:
    writer.parts.append("union ")
    writer.write(value.__args__)


def _write_type_variable(writer: Writer, value: Any) -> None:
    if writer.enter(value):
        writer.parts.append(f"{type(value).__name__} {write_name(value.__name__)}")


def write_module(writer: Writer, value: types.ModuleType) -> None:
    """Writes a module by its name: what is looked up in it is noted when it is looked up.

    Raises:
        Declined: if another process would not find it under its name.
    """
    name = contents_of_module(value).get("__name__")
    if type(name) is not str or not (sys.modules.get(name) is value or _is_of_operators(name, value)):
        raise Declined(f"the module {write_name(name)} is not found under its name", Scope.VALUE)
    writer.parts.append(f"module {write_name(name)}")


def _is_of_operators(name: str, value: types.ModuleType) -> bool:
    """Returns whether something is a namespace of ``torch.ops``, none of which is among Python's modules."""
    return name.startswith("torch.ops.") and contents_of_module(torch.ops).get(name[len("torch.ops.") :]) is value


CONTAINERS: dict[int, Handler] = by_identity(
    (list, _write_list),
    (tuple, _write_tuple),
    (dict, _write_dict),
    (set, _write_plain_set),
    (frozenset, _write_frozenset),
    (collections.OrderedDict, _write_ordered_dict),
    (collections.defaultdict, _write_default_dict),
    (collections.deque, _write_deque),
    (bytearray, _write_byte_array),
    (types.MappingProxyType, _write_mapping_proxy),
    (types.SimpleNamespace, _write_namespace),
    (torch.Size, _write_size),
    (slice, _write_slice),
    (range, _write_range),
    (weakref.ReferenceType, _write_reference),
    (re.Pattern, _write_pattern),
    (types.GenericAlias, _write_generic_alias),
    (types.UnionType, _write_union),
    (typing.TypeVar, _write_type_variable),
    (typing.ParamSpec, _write_type_variable),
    (types.ModuleType, write_module),
)
