"""Detects whether objects that a text was made of have changed since, by comparing what they refer to by identity.

A fingerprint is shallow: it looks at the objects that it is given, and at those inside of them only if they are given
as well. It keeps all of them alive, so that no identity is used twice. ``KnownClasses`` are those that were described
for one key, and are not described again while nothing of them changed.
"""

from __future__ import annotations

import builtins
import collections
import functools
import gc
import logging
import re
import types
import typing
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch

from fusioncache.accelerators.programs.introspection import (
    ABSENT,
    are_same,
    consists_of,
    find_module_name,
    find_original,
    ids_of,
    is_derived,
    is_dictionary,
    is_written_in_python,
    may_tag,
    mro_of,
    namespace_of,
)
from fusioncache.accelerators.programs.literals import LITERALS, write_class_name
from fusioncache.accelerators.programs.objects import (
    ObjectLayout,
    class_of_annotation,
    find_handler,
    find_plain_layout,
    write_registered,
)
from fusioncache.accelerators.programs.writer import ClassContent, Memory, Record, Writer

_CACHED = type(functools.lru_cache(len))
_KNOWN = ids_of(
    object, tuple, frozenset, range, slice, torch.Size, list, set, dict, collections.deque, collections.OrderedDict,
    collections.defaultdict, functools.partial, property, staticmethod, classmethod, re.Pattern, ContextVar, _CACHED,
    typing.TypeVar, typing.ParamSpec, types.CodeType, types.FunctionType, types.CellType, types.MethodType,
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, types.MappingProxyType,
    types.GenericAlias, types.UnionType,
)  # fmt: skip
"""Types of which an object is the same while it refers to the same objects."""

_HIDDEN = frozenset({"builtins.instancemethod", "collections._tuplegetter"})
"""Such types that no module of Python's has, by their names."""

_WITH_ATTRIBUTES = ids_of(
    collections.OrderedDict, functools.partial, staticmethod, classmethod, _CACHED, types.FunctionType
)

_UNFIT = (torch.Tensor, torch.nn.Module, weakref.ReferenceType)
"""Tensors share memory with others, modules change often, and a fingerprint keeps alive what it looks at."""

_MARK = (object(),)
"""Stands behind each container, so that an item that moves from the end of one to the next is noticed."""

_read_names = [type.__dict__[name].__get__ for name in ("__module__", "__qualname__", "__name__")]


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

    __slots__ = (
        "_items",
        "_objects",
        "_others",
        "_parts",
        "_read",
        "_readers",
        "_referents",
        "_tables",
        "_texts",
        "_written",
    )

    def __init__(
        self,
        values: Iterable[object] = (),
        classes: Iterable[type] = (),
        tables: Iterable[Iterable[Any]] = (),
        read: Callable[[], Iterable[Any]] = tuple,
    ):
        self._tables: list[Iterable[Any]] = [*chain.from_iterable((table, _MARK) for table in tables)]
        self._objects: list[Any] = []
        self._readers: list[tuple[Callable[[Any], tuple[Any, ...]], Any]] = []
        self._written: list[tuple[Callable[[Any], str | None], Any]] = []
        self._others: list[object] = []
        self._read = read
        self._add_values({id(each): each for each in values}.values())
        self._add_classes({id(each): each for each in classes})
        self._items = [*chain.from_iterable(self._tables)]
        self._referents = gc.get_referents(*self._objects)
        self._parts, self._texts = self._list_parts(), self._list_texts()

    def holds(self) -> bool:
        """Returns whether all of it is the same now. What cannot be read any more is not."""
        try:
            return (
                consists_of(self._tables, self._items)
                and are_same(gc.get_referents(*self._objects), self._referents)
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
        layouts: dict[int, ObjectLayout | None] = {}
        namespaces: dict[int, Mapping[str, Any]] = {}
        for value in values:
            kind = type(value)
            if id(kind) in LITERALS or is_derived(kind, type):
                continue
            if id(kind) not in _KNOWN and not _is_hidden(kind):
                if id(kind) not in layouts:
                    layouts[id(kind)] = find_plain_layout(kind)
                if not self._add_attributes(value, layouts[id(kind)]):
                    self._others.append(value)
                    continue
            elif is_dictionary(kind):
                self._add_table(value)
            if kind is collections.OrderedDict:  # whose order is not that of the dict in it
                self._tables += (value, _MARK)
            if id(kind) in _WITH_ATTRIBUTES:
                self._add_table(value.__dict__)
            if kind is types.FunctionType:
                namespaces[id(value.__globals__)] = value.__globals__
                self._add_function(value)
            if kind is not _CACHED:  # which refers to results as well
                self._objects += (value, _MARK)
        for namespace in namespaces.values():
            self._written += ((_name_of, namespace), (find_module_name, namespace))
            if find_module_name(namespace) is None:
                self._add_table(namespace)

    def _add_function(self, function: types.FunctionType) -> None:
        if function.__kwdefaults__ is not None:
            self._add_table(function.__kwdefaults__)
        if may_tag(function):
            self._readers.append((_original_of, function))
        own: Any = getattr(function, "__builtins__", {})
        if own is not vars(builtins):
            self._add_table(own)

    def _add_attributes(self, value: object, layout: ObjectLayout | None) -> bool:
        """Adds the attributes of an object; returns whether it has nothing else that may change but its slots."""
        attributes = layout.attributes(value) if layout is not None and layout.attributes is not None else {}
        if layout is None or type(attributes) is not dict:
            return False
        self._add_table(attributes)
        self._readers.append((partial(_read_slots, layout), value))
        return True

    def _add_table(self, table: Any) -> None:
        kind: Any = dict if is_dictionary(type(table)) else types.MappingProxyType
        self._tables += (kind.keys(table), kind.values(table), _MARK)

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


def _names_of(cls: type) -> tuple[Any, ...]:
    return tuple([read(cls) for read in _read_names])


def _bases_of(cls: type) -> tuple[Any, ...]:
    return type(cls), mro_of(cls)


def _name_of(namespace: Mapping[str, Any]) -> str | None:
    name = namespace.get("__name__")
    return name if type(name) is str else None


def _original_of(function: types.FunctionType) -> tuple[Any, ...]:
    return (find_original(function),)


def _read_slots(layout: ObjectLayout, value: object) -> tuple[Any, ...]:
    return tuple([_read_slot(value, slot) for _, slot in layout.slots])


def _read_slot(value: object, slot: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return ABSENT


def _is_hidden(kind: type) -> bool:
    return not is_written_in_python(kind) and write_class_name(kind) in _HIDDEN


def _outline(values: Iterable[object]) -> list[str | None]:
    """Returns each value as a line without what its classes are; the reason in place of one that has no value."""
    memory, lines = Memory(), list[str | None]()
    for value in values:
        writer = Writer(memory, find_handler)
        with torch._C.DisableTorchFunction():
            reason = writer.attempt(partial(writer.write, value))
        lines.append(writer.text() if reason is None else f"none: {reason}")
    return lines


logger = logging.getLogger("fusioncache")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KnownClass:
    """What a class is by itself.

    Attributes:
        content: the description.
        record: what a describer learned when it described the class.
        fingerprint: of all objects that the description was made of.
    """

    content: ClassContent
    record: Record
    fingerprint: Fingerprint


@dataclass(slots=True, eq=False, repr=False)
class KnownClasses:
    """The classes of one key, by their identities.

    Attributes:
        known: those that were described before.
        is_learning: whether they are remembered for a later key.
        found: those that this key met and that are remembered.
    """

    known: Mapping[int, KnownClass] = field(default_factory=dict)
    is_learning: bool = False
    found: dict[int, KnownClass] = field(default_factory=dict)
    _held: dict[int, bool] = field(default_factory=dict)

    def are_unchanged(self, classes: Iterable[int]) -> bool:
        """Returns whether all these classes are known and as they were."""
        return all(map(self._holds, classes))

    def recall(self, cls: type, memory: Memory) -> ClassContent | None:
        """Returns what a class is, and teaches a describer what it would learn from it; None if that is not known."""
        if not self._holds(id(cls)) or not self.known[id(cls)].record.teach(memory):
            return None
        found = self.found[id(cls)] = self.known[id(cls)]
        return found.content

    def learn(self, cls: type, content: ClassContent, record: Record | None) -> None:
        """Remembers what a class is, if that does not depend on what was described before it."""
        fingerprint = take_fingerprint(record) if record is not None else None
        if record is not None and fingerprint is not None:
            self.found[id(cls)] = KnownClass(content, record, fingerprint)

    def list_reached(self, record: Record) -> dict[int, KnownClass] | None:
        """Returns the classes of which a text has the digests; None if one of them is not remembered."""
        waiting, reached = [each for each, _ in record.classes.values()], dict[int, KnownClass]()
        while waiting:
            identity = id(waiting.pop())
            if identity not in self.found:
                return None
            if identity not in reached:
                reached[identity] = self.found[identity]
                waiting += reached[identity].content.classes
        return reached

    def _holds(self, identity: int) -> bool:
        held = self._held.get(identity)
        if held is None:
            held = self._held[identity] = identity in self.known and self.known[identity].fingerprint.holds()
        return held


def take_fingerprint(record: Record) -> Fingerprint | None:
    """Returns the fingerprint of all objects that a text was made of; None if there can be none."""
    if not is_fit(record.met):
        return None
    try:
        return Fingerprint(record.met, [each for each, _ in record.classes.values()])
    except Exception:  # there is too much of it, or an object is damaged
        logger.info("a class or the function map is described for each key", exc_info=True)
        return None
