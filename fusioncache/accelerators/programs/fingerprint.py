"""Detects whether objects that a text was made of have changed since, by comparing what they consist of by identity.

A fingerprint is shallow: it looks at the objects that it is given, and at those inside of them only if they are given
as well. It keeps all of them alive, so that no identity is used twice.
"""

from __future__ import annotations

import builtins
import collections
import functools
import re
import types
import typing
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any

import torch

from fusioncache.accelerators.programs.classes import class_of_annotation, write_registered
from fusioncache.accelerators.programs.dynamo_tags import find_original, may_tag
from fusioncache.accelerators.programs.introspection import (
    ABSENT,
    are_same,
    by_identity,
    consists_of,
    ids_of,
    is_derived,
    is_dictionary,
    is_written_in_python,
    mro_of,
    namespace_of,
)
from fusioncache.accelerators.programs.literals import LITERALS, write_class_name
from fusioncache.accelerators.programs.lookup import find_module_name
from fusioncache.accelerators.programs.memory import Memory
from fusioncache.accelerators.programs.objects import Layout, find_handler, find_plain_layout
from fusioncache.accelerators.programs.writer import Writer

type _Reader = Callable[[Any], tuple[Any, ...]]
"""Returns what an object consists of. The number of parts never changes."""

_FIXED = ids_of(
    object,
    tuple,
    frozenset,
    range,
    slice,
    torch.Size,
    types.CodeType,
    types.MethodType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodWrapperType,
    types.MappingProxyType,
    types.GenericAlias,
    types.UnionType,
    typing.TypeVar,
    typing.ParamSpec,
    re.Pattern,
    ContextVar,
)
"""Types whose objects never change. What is in them was described by itself."""

_HIDDEN_FIXED = frozenset({"builtins.instancemethod", "collections._tuplegetter"})
"""Such types that no module of Python's has, by their names."""

_UNFIT = (torch.Tensor, torch.nn.Module, weakref.ReferenceType)
"""Tensors share memory with others, modules change often, and a fingerprint keeps alive what it looks at."""

_MARK = (object(),)
"""Stands behind each container, so that an item that moves from the end of one to the next is noticed."""


def _content_of(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return (ABSENT,)


def _original_of(function: types.FunctionType) -> tuple[Any, ...]:
    return (find_original(function),)


def _name_of(namespace: Mapping[str, Any]) -> tuple[Any, ...]:
    return (namespace.get("__name__"),)


def _attributes_of(value: Any) -> tuple[Any, ...]:
    return (value.__dict__,)


_names_of_class = [type.__dict__[name].__get__ for name in ("__module__", "__qualname__", "__name__")]


def _names_of(cls: type) -> tuple[Any, ...]:
    return tuple([read(cls) for read in _names_of_class])


def _bases_of(cls: type) -> tuple[Any, ...]:
    return type(cls), mro_of(cls)


def _read_layout(layout: Layout, value: object) -> tuple[Any, ...]:
    attributes = layout.attributes(value) if layout.attributes is not None else None
    return type(value), attributes, *[_read_slot(value, slot) for _, slot in layout.slots]


def _read_slot(value: object, slot: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return ABSENT


_CACHED = type(functools.lru_cache(len))
_WITH_ATTRIBUTES = ids_of(collections.OrderedDict, functools.partial, staticmethod, classmethod, _CACHED)
_READERS: Mapping[int, _Reader | None] = by_identity(
    (list, None),
    (set, None),
    (collections.deque, None),
    (dict, None),
    (collections.OrderedDict, _attributes_of),
    (collections.defaultdict, lambda value: (value.default_factory,)),
    (
        types.FunctionType,
        attrgetter("__code__", "__defaults__", "__kwdefaults__", "__dict__", "__name__", "__qualname__", "__module__"),
    ),
    (types.CellType, _content_of),
    (types.BuiltinFunctionType, lambda function: (function.__module__,)),
    (property, attrgetter("fget", "fset", "fdel")),
    (functools.partial, attrgetter("func", "args", "keywords", "__dict__")),
    (staticmethod, _attributes_of),
    (classmethod, _attributes_of),
    (_CACHED, _attributes_of),
)
"""What reads the parts of an object, by the identity of its type; None if the items of a container are all."""


def is_fit(values: Iterable[object]) -> bool:
    """Returns whether a fingerprint of these values can be taken."""
    kinds = {id(type(value)): type(value) for value in values}.values()
    return not any(is_derived(kind, each) for kind in kinds for each in _UNFIT)


class Fingerprint:
    """What values and classes consist of at this moment.

    Args:
        values: the values, each with the objects inside of it that matter.
        classes: classes whose bodies matter.
        tables: containers, or views of them, of which the items matter.
        read: returns what else matters, now and later.

    Raises:
        Declined: if a value is too large to be described.
    """

    __slots__ = ("_containers", "_items", "_others", "_parts", "_read", "_readers", "_texts", "_written")

    def __init__(
        self,
        values: Iterable[object] = (),
        classes: Iterable[type] = (),
        tables: Iterable[Iterable[Any]] = (),
        read: Callable[[], Iterable[Any]] = tuple,
    ):
        self._containers: list[Iterable[Any]] = [*chain.from_iterable((table, _MARK) for table in tables)]
        self._readers: list[tuple[_Reader, Any]] = []
        self._written: list[tuple[Callable[[Any], str | None], Any]] = []
        self._others: list[object] = []
        self._read = read
        self._add_values({id(each): each for each in values}.values())
        self._add_classes({id(each): each for each in classes})
        self._items = [*chain.from_iterable(self._containers)]
        self._parts, self._texts = self._list_parts(), self._list_texts()

    def holds(self) -> bool:
        """Returns whether all of it is the same now. What cannot be read any more is not."""
        try:
            return (
                consists_of(self._containers, self._items)
                and are_same(self._list_parts(), self._parts)
                and self._list_texts() == self._texts
            )
        except Exception:  # a class without the name of its module, a dict that another thread changes
            return False

    def _list_parts(self) -> list[Any]:
        return [*chain.from_iterable([read(value) for read, value in self._readers]), *self._read()]

    def _list_texts(self) -> list[str | None]:
        texts = [write(value) for write, value in self._written]
        return texts + _outline(self._others) if self._others else texts

    def _add_values(self, values: Iterable[Any]) -> None:
        layouts: dict[int, Layout | None] = {}
        namespaces: dict[int, Mapping[str, Any]] = {}
        for value in values:
            kind = type(value)
            if id(kind) in _FIXED or id(kind) in LITERALS or is_derived(kind, type) or _is_hidden(kind):
                continue
            if id(kind) not in _READERS:
                if id(kind) not in layouts:
                    layouts[id(kind)] = find_plain_layout(kind)
                self._add_object(value, layouts[id(kind)])
                continue
            reader = _READERS[id(kind)]
            if reader is not None:
                self._readers.append((reader, value))
            if is_dictionary(kind):
                self._add_table(value)
            elif reader is None:
                self._containers += (value, _MARK)
            if kind is collections.OrderedDict:  # whose order is not that of the dict in it
                self._containers += (value, _MARK)
            if id(kind) in _WITH_ATTRIBUTES:
                self._add_table(value.__dict__)
            if kind is types.FunctionType:
                namespaces[id(value.__globals__)] = value.__globals__
                self._add_function(value)
        for namespace in namespaces.values():
            self._readers.append((_name_of, namespace))
            self._written.append((find_module_name, namespace))
            if find_module_name(namespace) is None:
                self._add_table(namespace)

    def _add_function(self, function: types.FunctionType) -> None:
        self._add_table(function.__dict__)
        if function.__kwdefaults__ is not None:
            self._add_table(function.__kwdefaults__)
        if may_tag(function):
            self._readers.append((_original_of, function))
        own: Any = getattr(function, "__builtins__", {})
        if own is not vars(builtins):
            self._add_table(own)

    def _add_object(self, value: object, layout: Layout | None) -> None:
        attributes = layout.attributes(value) if layout is not None and layout.attributes is not None else {}
        if layout is None or type(attributes) is not dict:
            self._others.append(value)
            return
        self._add_table(attributes)
        self._readers.append((partial(_read_layout, layout), value))

    def _add_table(self, table: Any) -> None:
        kind: Any = dict if is_dictionary(type(table)) else types.MappingProxyType
        self._containers += (kind.keys(table), kind.values(table), _MARK)

    def _add_classes(self, classes: Mapping[int, type]) -> None:
        named = dict(classes)
        for cls in filter(is_written_in_python, classes.values()):
            body = namespace_of(cls)
            self._add_table(body)
            self._readers.append((_bases_of, cls))
            annotations = body.get("__annotations__")
            if type(annotations) is dict:
                self._add_table(annotations)
                named.update((id(each), each) for each in map(class_of_annotation, annotations.values()))
            if "_abc_impl" in body:
                self._written.append((write_registered, cls))
        self._readers += ((_names_of, each) for each in named.values() if is_written_in_python(each))


def _is_hidden(kind: type) -> bool:
    return not is_written_in_python(kind) and write_class_name(kind) in _HIDDEN_FIXED


def _outline(values: Iterable[object]) -> list[str | None]:
    """Returns each value as a line without what its classes are; the reason in place of one that has no value."""
    memory, lines = Memory(), list[str | None]()
    for value in values:
        writer = Writer(memory, find_handler)
        with torch._C.DisableTorchFunction():
            reason = writer.attempt(partial(writer.write, value))
        lines.append(writer.text() if reason is None else f"none: {reason}")
    return lines
