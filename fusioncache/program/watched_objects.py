"""What a describer looked at, and whether it would say the same of all of it now, without asking it to say it again.

What most values refer to is all that there is to them: a snapshot compares that by identity, thousands of them in a
millisecond. What else a text depends on is compared beside it:

- the names of classes, and what was registered with abstract ones;
- the names of the modules that functions are of;
- whose code tags modules (``dynamo_tags.py``);
- of a property and of slots, what is in them, as nothing says which of them is empty;
- all that is in no list here is described again, and the texts are compared.

Values that were written are those that ``Writer.write`` got. Parts of these that are read without being written are
named here: attributes of functions and of methods, bodies and annotations of classes.
"""

from __future__ import annotations

import builtins
import collections
import functools
import gc
import re
import types
import typing
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any

import torch

from fusioncache.program.classes import class_of_annotation, write_registered
from fusioncache.program.describe import Describer
from fusioncache.program.dynamo_tags import find_tagging
from fusioncache.program.introspection import ABSENT, ids_of, is_derived, is_written_in_python, namespace_of
from fusioncache.program.literals import LITERALS, write_class_name
from fusioncache.program.lookup import find_module_name
from fusioncache.program.objects import Layout, find_plain_layout
from fusioncache.program.snapshot import Snapshot, are_same

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
"""Types whose objects never change in what is written of them. What they refer to was written by itself."""

_TOLD_BY_REFERENTS = ids_of(
    list,
    dict,
    set,
    collections.OrderedDict,
    collections.defaultdict,
    collections.deque,
    functools.partial,
    staticmethod,
    classmethod,
    types.BuiltinFunctionType,
    types.CellType,
    types.FunctionType,
)
"""Types of whose objects Python's collector knows all that may change, but for what is in their ``__dict__``."""

_HIDDEN_TOLD_BY_REFERENTS = frozenset({"builtins.instancemethod", "collections._tuplegetter"})
"""Such types that no module of Python's has, by what they call themselves."""

_CACHED = type(functools.lru_cache(len))  # which refers to what it remembers
_WITH_ATTRIBUTES = ids_of(collections.OrderedDict, functools.partial, staticmethod, classmethod, _CACHED)
_functions_of = attrgetter("fget", "fset", "fdel")
_names_of = tuple(type.__dict__[name].__get__ for name in ("__module__", "__qualname__", "__name__"))


_LEFT_ALONE = (torch.Tensor, torch.nn.Module, weakref.ReferenceType)


def can_be_watched(values: Iterable[object]) -> bool:
    """Tells whether values can be.

    Not tensors, which share memory with others, nor modules, which change often; nor what has weak references, as what
    is watched is kept alive.
    """
    kinds = {id(type(value)): type(value) for value in values}.values()
    return not any(is_derived(kind, each) for kind in kinds for each in _LEFT_ALONE)


def _is_told_by_referents(kind: type) -> bool:
    if id(kind) in _TOLD_BY_REFERENTS:
        return True
    return not is_written_in_python(kind) and write_class_name(kind) in _HIDDEN_TOLD_BY_REFERENTS


@dataclass(slots=True)
class _Kinds:
    """Values, by how they are compared.

    Attributes:
        referring: by what they refer to.
        classes: by their names.
        abstract: classes, by what was registered with them.
        namespaces: names of modules, by what these are called.
        properties: by their functions.
        slots: of objects, by what is in them.
        others: by their descriptions.
    """

    referring: list[Any] = field(default_factory=list)
    classes: dict[int, type] = field(default_factory=dict)
    abstract: list[type] = field(default_factory=list)
    namespaces: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    properties: list[property] = field(default_factory=list)
    slots: list[tuple[object, Any]] = field(default_factory=list)
    others: list[object] = field(default_factory=list)
    _layouts: dict[int, Layout | None] = field(default_factory=dict)

    def add(self, value: Any) -> None:
        """Adds a value that was written."""
        kind = type(value)
        self.classes[id(kind)] = kind
        if id(kind) in _FIXED or id(kind) in LITERALS:
            return
        if id(kind) in _WITH_ATTRIBUTES:
            self.referring.append(value.__dict__)
        if _is_told_by_referents(kind):
            self.referring.append(value)
            if kind is types.FunctionType:
                self._add_namespaces(value)
        elif kind is property:
            self.properties.append(value)
        elif is_derived(kind, type):
            self.add_class(value)
        elif kind is not _CACHED:
            self._add_object(value)

    def _add_object(self, value: object) -> None:
        kind = type(value)
        if id(kind) not in self._layouts:
            self._layouts[id(kind)] = find_plain_layout(kind)
        layout = self._layouts[id(kind)]
        attributes = layout.attributes(value) if layout and layout.attributes else {}
        if layout is None or type(attributes) is not dict:
            self.others.append(value)
            return
        self.slots += ((value, slot) for _, slot in layout.slots)
        self.referring += (value, attributes)

    def _add_namespaces(self, function: types.FunctionType) -> None:
        """Adds the names of a function's module; of one that is of no module, all names that it may look up."""
        names = function.__globals__
        self.namespaces[id(names)] = names
        own: Any = getattr(function, "__builtins__", {})
        if find_module_name(names) is None:
            self.referring.append(names)
        if own is not vars(builtins):
            self.referring.append(own)

    def add_class(self, cls: type) -> None:
        """Adds a class that was described, with all that its body holds."""
        self.classes[id(cls)] = cls
        if not is_written_in_python(cls):
            return
        # The body itself: what the class hands out of it is made anew each time.
        body = next(each for each in gc.get_referents(cls) if type(each) is dict)
        self.referring += (cls, body)
        annotations = namespace_of(cls).get("__annotations__")
        if type(annotations) is dict:
            self.referring.append(annotations)
            self.classes.update((id(each), each) for each in map(class_of_annotation, annotations.values()))
        if "_abc_impl" in namespace_of(cls):
            self.abstract.append(cls)


@dataclass(frozen=True, slots=True)
class _Answers:
    """What is asked again, beside the snapshot.

    Attributes:
        objects: compared by identity: names of classes, names in namespaces, whose code tags modules, what is in slots,
            functions of properties.
        modules: the module of each namespace.
        registered: with each abstract class.
        texts: what others are.
    """

    objects: list[Any]
    modules: list[str | None]
    registered: list[str]
    texts: list[str]

    def are(self, others: _Answers) -> bool:
        """Tells whether other answers are the same."""
        return are_same(self.objects, others.objects) and (self.modules, self.registered, self.texts) == (
            others.modules,
            others.registered,
            others.texts,
        )


class WatchedObjects:
    """All that a describer looked at, with what it was at this moment.

    Args:
        values: what it wrote.
        classes: those that it looked at.

    Raises:
        Declined: if there is too much of it.
    """

    __slots__ = ("_answers", "_kinds", "_snapshot")

    def __init__(self, values: Iterable[object], classes: Iterable[type]):
        kinds = self._kinds = _Kinds()
        for value in {id(each): each for each in values}.values():
            kinds.add(value)
        for cls in classes:
            kinds.add_class(cls)
        self._snapshot = Snapshot({id(each): each for each in kinds.referring}.values())
        self._answers = self._ask()

    def hold(self) -> bool:
        """Tells whether all that was looked at is as it was. Whatever cannot be asked any more is not."""
        try:
            return self._snapshot.holds() and self._ask().are(self._answers)
        except Exception:  # a class that has lost the name of its module, a dict that another thread changes
            return False

    def _ask(self) -> _Answers:
        kinds = self._kinds
        return _Answers(
            [*self._list_names(), *find_tagging().list_codes(), *self._list_fields()],
            [find_module_name(each) for each in kinds.namespaces.values()],
            [write_registered(each) for each in kinds.abstract],
            Describer().outline(kinds.others),
        )

    def _list_fields(self) -> Iterator[Any]:
        for value, slot in self._kinds.slots:
            try:
                yield slot.__get__(value)
            except AttributeError:
                yield ABSENT
        yield from chain.from_iterable(map(_functions_of, self._kinds.properties))

    def _list_names(self) -> Iterator[Any]:
        classes = [each for each in self._kinds.classes.values() if is_written_in_python(each)]
        for name_of in _names_of:
            yield from map(name_of, classes)
        yield from (each.get("__name__") for each in self._kinds.namespaces.values())
