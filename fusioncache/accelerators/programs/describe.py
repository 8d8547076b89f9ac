"""Values as text: two values that a trace could tell apart have different texts, in this process and in another.

    describer = Describer()
    dict(describer.walk("model", model))     # {"model": "module litgpt.model.GPT", "model.lm_head": ..., ...}
    describer.describe(config)               # a line
    describer.list_classes()                 # {"litgpt.model.GPT": ("5f...", ...), ...}: what the walks' texts name

Nothing of a value's own is called: no ``__repr__``, ``__eq__``, ``__hash__``, ``__getattr__``, ``__reduce__`` or
property. What has state that cannot be read so (a lock, a file, a generator, most of what is written in C) raises
``Declined``.

A describer is made anew for each comparison. It remembers classes and code, so it must not outlive a change of these.

The state of an object is the instance's ``__dict__``, its slots, and the content of a builtin type that the class is
derived from. A class written in C may keep more than that. It does if its instances are larger than those of its base
and its slots account for; then they have no value here, unless its type has a handler of its own.

A class by itself is its metaclass, its MRO and everything in its own ``__dict__``, with other classes by their names.
Each class has a name of its own, so that the contents of all classes that are met, name by name, are a description of
the whole graph of classes, cycles and all.

An attribute of a class that has no value (a lock, a logger) would make every model of the class one without a value. It
is written as unknown, with the type and the reason, and noted in the memory. This is safe only together with the
recorder, which refuses a program for which such an attribute was read. What changed from a value to an unknown one, or
to an unknown one of another type, is a difference all the same.
"""

from __future__ import annotations

import _abc
import enum
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from fusioncache.accelerators.programs.containers import (
    CONTAINERS,
    CONTENTS,
    describe_frame,
    list_parts,
    write_foreign_tensor,
    write_module,
    write_nothing,
    write_pairs,
)
from fusioncache.accelerators.programs.functions import FUNCTIONS, LEFT_OUT, find_reviewed
from fusioncache.accelerators.programs.introspection import (
    ABSENT,
    MARK,
    find_in_class,
    find_original,
    is_derived,
    is_written_in_python,
    mro_of,
    namespace_of,
)
from fusioncache.accelerators.programs.writer import (
    LITERALS,
    ClassContent,
    Handler,
    Memory,
    Writer,
    digest,
    write_class_name,
    write_name,
)
from fusioncache.ir import Declined, Scope
from fusioncache.ir.keys import NamedValue

_POINTER = 8

_base_of = type.__dict__["__base__"].__get__
_size_of = type.__dict__["__basicsize__"].__get__
_dict_offset_of = type.__dict__["__dictoffset__"].__get__


@dataclass(frozen=True, slots=True)
class ObjectLayout:
    """Where the instances of a class keep their state.

    Attributes:
        content: what writes the content of the builtin type that the class is derived from.
        slots: each slot's name and what reads it.
        attributes: what returns the instance's ``__dict__``, if it has one.
        left_out: the names of attributes that are left out.
    """

    content: Handler
    slots: tuple[tuple[str, Any], ...]
    attributes: Callable[[object], dict[str, object]] | None
    left_out: frozenset[str]

    def read_attributes(self, value: object) -> dict[str, object]:
        """Returns the instance's own attributes but for those that are left out.

        Raises:
            Declined: if they are in a dict of a class of its own.
        """
        attributes = {} if self.attributes is None else self.attributes(value)
        if type(attributes) is not dict:
            raise Declined(f"the attributes of a {write_class_name(type(value))} are not in a dict", Scope.VALUE)
        if not self.left_out:
            return attributes
        return {name: item for name, item in attributes.items() if name not in self.left_out}


def find_layout(cls: type) -> ObjectLayout:
    """Returns where the instances of a class keep their state.

    Raises:
        Declined: if they have some that is not known.
    """
    slots: list[tuple[str, Any]] = []
    base = cls
    while is_written_in_python(base):
        own = [
            (name, member)
            for name, member in namespace_of(base).items()
            if type(member) is types.MemberDescriptorType and member.__objclass__ is base
        ]
        above = _base_of(base)
        if above is None or _size_of(base) != _size_of(above) + _POINTER * len(own):
            raise Declined(f"a {write_class_name(cls)} has no value to compare: its state is not Python's", Scope.VALUE)
        slots[:0] = own
        base = above
    content = CONTENTS.get(id(base))
    if content is None:
        built_on = "" if base is cls else f": it is built on {write_class_name(base)}"
        raise Declined(f"a {write_class_name(cls)} has no value to compare{built_on}", Scope.VALUE)
    left_out = (LEFT_OUT.get(write_class_name(each), _NOTHING)[0] for each in mro_of(cls))
    return ObjectLayout(content, tuple(slots), _find_attributes(cls), frozenset[str]().union(*left_out))


def _find_attributes(cls: type) -> Callable[[object], dict[str, object]] | None:
    found = find_in_class(cls, "__dict__")
    if isinstance(found, types.GetSetDescriptorType | types.MemberDescriptorType):
        return found.__get__
    if found is not ABSENT:
        raise Declined(f"the attributes of a {write_class_name(cls)} are behind a __dict__ of its own", Scope.VALUE)
    if _dict_offset_of(cls):
        raise Declined(f"the attributes of a {write_class_name(cls)} cannot be read", Scope.VALUE)
    return None


def find_handler(cls: type) -> Handler:
    """Returns what writes the instances of a class.

    Raises:
        Declined: if these have no value.
    """
    handler = _find_special(cls)
    if handler is not None:
        return handler
    layout = find_layout(cls)
    is_module = is_derived(cls, torch.nn.Module)

    def write(writer: Writer, value: object) -> None:
        if writer.enter(value):
            writer.parts.append("<")
            writer.write_class(cls)
            write_fixed_state(writer, value, layout)
            write_attributes(writer, layout.read_attributes(value), is_module)
            writer.parts.append(">")

    if is_enumeration(cls):
        return lambda writer, value: writer.write_named(_name_of_member(layout, value), value, write)
    return write


def _name_of_member(layout: ObjectLayout, value: object) -> object:
    return None if layout.attributes is None else layout.attributes(value).get("_name_")


def _find_special(cls: type) -> Handler | None:
    """Returns what writes the instances of a class of which there is more to know than where they keep their state."""
    handler = FUNCTIONS.get(id(cls)) or CONTAINERS.get(id(cls))
    if handler is not None:
        return handler
    reviewed = find_reviewed(cls)
    if reviewed is not None:
        return reviewed
    if is_derived(cls, type):
        return _write_class_value
    if is_derived(cls, torch.Tensor):
        return write_foreign_tensor
    if is_derived(cls, types.ModuleType):
        return write_module
    return _write_bare_object if cls is object else None


def write_fixed_state(writer: Writer, value: object, layout: ObjectLayout) -> None:
    """Writes an object's content as that of a builtin type, and its slots."""
    if layout.content is not write_nothing:
        writer.parts.append(" ")
        layout.content(writer, value)
    for name, slot in layout.slots:
        writer.parts.append(f" {name} ")
        try:
            content = slot.__get__(value)
        except AttributeError:
            writer.parts.append("empty")
        else:
            writer.write_named(name, content)


def write_attributes(writer: Writer, attributes: dict[str, object], is_module: bool) -> None:
    """Writes the attributes of an object, those of a module as ``modules`` lists them."""
    parts = writer.parts
    if not is_module:
        parts.append(" ")
        write_pairs(writer, attributes.items())
        return
    parts.append(describe_frame(attributes))
    for kind, name, part in list_parts(attributes):
        parts.append(f" {kind} ")
        write_pairs(writer, [(name, part)])


def _write_class_value(writer: Writer, value: type) -> None:
    writer.parts.append("class ")
    writer.write_class(value)


def _write_bare_object(writer: Writer, value: object) -> None:
    if writer.enter(value, lasting=True):
        writer.parts.append("<object>")


def is_enumeration(cls: type) -> bool:
    """Returns whether a class is an enumeration."""
    return is_derived(type(cls), enum.EnumType)


_NOTHING: tuple[frozenset[str], str] = (frozenset(), "")
_SAYS_NOTHING = {
    "__doc__": "it is documentation, in which there may be representations of values",
    "_autograd_function_id": "it counts the classes of the process",
    "__firstlineno__": "it is where the class is written",
    "__static_attributes__": "it follows from the methods, in an order that may be another one in each process",
}
"""Attributes of any class that are not described, with the reason. A program that reads one is not kept."""

_LONGEST_PART = 120
"""Characters of the longest part of a class that is written out for people."""

_name_of = type.__dict__["__name__"].__get__


def write_content(writer: Writer, cls: type) -> Iterator[tuple[str, str]]:
    """Writes what a class is by itself, and yields what it wrote of each attribute. One written in C is its name."""
    parts = writer.parts
    parts.append(f"class {writer.memory.name_class(cls)} {write_name(_name_of(cls))} ")
    writer.write_class(type(cls))
    for base in mro_of(cls)[1:]:
        parts.append(" ")
        writer.write_class(base)
    if not is_written_in_python(cls):
        return
    for name in LEFT_OUT.get(write_class_name(cls), _NOTHING)[0]:
        _note_unknown(writer, cls, name, LEFT_OUT[write_class_name(cls)][1])
    if cls is torch.nn.Module:
        _note_unknown(writer, cls, MARK, "it says that Dynamo ran in the process")
    for name, value in namespace_of(cls).items():
        if name in _SAYS_NOTHING and type(value) in (str, int, tuple):
            _note_unknown(writer, cls, name, _SAYS_NOTHING[name])
        elif not _is_left_out(cls, name, value):
            parts.append(f"\n{write_name(name)} ")
            before = len(parts)
            _write_attribute(writer, cls, name, value)
            yield name, "".join(parts[before:])


def _is_left_out(cls: type, name: str, value: object) -> bool:
    """True if an attribute says nothing: it follows from others, or is a cached result of them."""
    if name in ("__dict__", "__weakref__"):
        return type(value) is types.GetSetDescriptorType
    if name == "__doc__":
        return value is None
    if name == "__slotnames__":  # what ``copyreg`` found when an instance was copied
        return type(value) is list
    if name == MARK:
        return cls is torch.nn.Module and type(value) is bool
    if name == "_value2member_map_":  # a table of the members, to which a flag adds combinations as they are asked for
        return is_enumeration(cls)
    return name in LEFT_OUT.get(write_class_name(cls), _NOTHING)[0]


def _note_unknown(writer: Writer, cls: type, name: str, reason: str) -> None:
    writer.memory.unknown[writer.memory.name_class(cls), name] = reason


def _write_attribute(writer: Writer, cls: type, name: str, value: Any) -> None:
    parts = writer.parts
    if type(value) is types.FunctionType:
        value = find_original(value)
    if name == "__annotations__" and type(value) is dict:
        parts.append(", ".join(f"{write_name(key)}: {_describe_annotation(item)}" for key, item in value.items()))
    elif name == "_abc_impl":
        parts.append(_write_registered(cls))
    elif type(value) is types.MemberDescriptorType and value.__objclass__ is cls:
        parts.append("slot")
    else:
        reason = writer.attempt(lambda: writer.write_named(name, value))
        if reason is not None:
            parts.append(f"unknown {write_class_name(type(value))}: {reason}")
            _note_unknown(writer, cls, name, reason)


def _describe_annotation(value: object) -> str:
    """Returns the name of a type: what an annotation stands for is not called."""
    literal = LITERALS.get(id(type(value)))
    if literal is not None:
        return literal(value)
    return write_class_name(cast(type, value) if is_derived(type(value), type) else type(value))


def _write_registered(cls: type) -> str:
    """Returns the names of the classes that were registered with an abstract one."""
    registered = (reference() for reference in _abc._get_dump(cls)[0])
    return ", ".join(sorted(write_class_name(other) for other in registered if other is not None))


def digest_graph(memory: Memory, cls: type) -> str:
    """Returns the hash of a class and all classes that it reaches."""
    reached: dict[int, type] = {}
    waiting = [cls]
    while waiting:
        found = waiting.pop()
        if id(found) not in reached:
            reached[id(found)] = found
            waiting += memory.contents[id(found)].classes
    lines = sorted(
        f"{memory.name_class(found)} {memory.contents[identity].digest}" for identity, found in reached.items()
    )
    return digest("\n".join([memory.name_class(cls), *lines]))


def make_content(writer: Writer, cls: type) -> ClassContent:
    """Returns what a class is by itself."""
    attributes = tuple((name, _shorten(text)) for name, text in write_content(writer, cls))
    return ClassContent(digest(writer.text()), tuple(writer.classes), attributes)


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_PART else f"{text[:_LONGEST_PART]}... hash {digest(text)}"


type ClassTexts = tuple[str, tuple[tuple[str, str], ...]]
"""The hash of a class, which says all of it, and its own attributes, each with the beginning of its text."""


class Describer:
    """Describes values, and remembers what it described.

    Args:
        memory: what it knows already; nothing if there is none.
    """

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory if memory is not None else Memory()

    def copy(self) -> Describer:
        """Returns a describer that knows what this one knows, so that each may go on for itself."""
        self._look_at_classes()
        return Describer(self._memory.copy())

    def forget_values(self) -> Describer:
        """Returns a describer that shares what this one knows of classes, and knows no other value."""
        return Describer(replace(self._memory, names={}, storages={}, held={}, values=0, lasting=0))

    def describe(self, value: object, name: object = None) -> str:
        """Returns a value as one line that says all of it, each class with the hash of everything it reaches.

        Objects that a walk met have the walk's name for them. All others have names of this text alone, but for tensors
        and bare ``object()``s: so describe things in the order in which those were that they are compared with.

        Args:
            value: to describe.
            name: that it goes by, if it has one: it says whether texts are secret.

        Raises:
            Declined: if it has no value.
        """
        writer = self._writer(digests=True)
        self._write(writer, value, name)
        return writer.text()

    def walk(self, path: str, value: object, name: object = None) -> Iterator[tuple[str, str]]:
        """Yields each part of a value: its path, which has no spaces, and a text.

        Modules of torch.nn are walked into, attribute by attribute; everything else is one text. Classes are named in
        the texts, and ``list_classes`` says what they are. For a name see ``describe``.

        Raises:
            Declined: if a part has no value. The reason begins with its path.
        """
        try:
            if self._is_unmet_module(value):
                yield from self._walk_module(path, value)
            else:
                writer = self._writer(path)
                self._write(writer, value, name)
                yield path, writer.text()
        except RecursionError as error:
            raise Declined(f"{path}: modules are nested too deeply", Scope.VALUE) from error
        self._look_at_classes()

    def list_classes(self) -> dict[str, ClassTexts]:
        """Returns every class met so far by its name, numbered if several have it, with its hash and own attributes."""
        self._look_at_classes()
        contents = self._memory.contents
        found = ((name, contents[identity]) for identity, (_, name) in self._memory.class_names.items())
        return {name: (content.digest, content.attributes) for name, content in found}

    @property
    def unknown(self) -> Mapping[tuple[str, str], str]:
        """Why an attribute of a class or of its instances has no value or is left out, by the names of both.

        The class's name is that in ``list_classes``.
        """
        self._look_at_classes()
        return self._memory.unknown

    def find_unknown(self, cls: type, attribute: str) -> str | None:
        """Returns why what a class or an instance has under a name is in no description; None if that is not so."""
        self._look_at_classes()
        memory = self._memory
        for base in mro_of(cls):
            named = memory.class_names.get(id(base))
            if named is not None and (named[1], attribute) in memory.unknown:
                return memory.unknown[named[1], attribute]
        return None

    @staticmethod
    def is_partly_unknown(cls: type) -> bool:
        """Returns whether attributes of the instances of a class are left out of their descriptions."""
        return not LEFT_OUT.keys().isdisjoint(map(write_class_name, mro_of(cls)))

    def covers(self, code: types.CodeType) -> bool:
        """Returns whether a code object was described, by itself or as a constant of another."""
        self._look_at_classes()
        return id(code) in self._memory.codes

    def covers_global(self, namespace: Mapping[str, object], name: str) -> bool:
        """Returns whether what a function's globals hold under a name was described with the function.

        They are if they are no module's, such as those of a function that was made by ``exec``.
        """
        self._look_at_classes()
        return (id(namespace), name) in self._memory.loose_globals

    def names(self, value: object) -> bool:
        """Returns whether all texts tell this very object from others: a walk met it, or it is a known class."""
        return id(value) in self._memory.names or id(value) in self._memory.class_names

    def _is_unmet_module(self, value: object) -> bool:
        return is_derived(type(value), torch.nn.Module) and id(value) not in self._memory.names

    def _walk_module(self, path: str, value: object) -> Iterator[tuple[str, str]]:
        layout = self._find_layout(type(value))
        attributes = layout.read_attributes(value)
        writer = self._writer(path)
        writer.enter(value)
        writer.parts.append("module ")
        writer.write_class(type(value))
        self._attempt(writer, lambda: write_fixed_state(writer, value, layout))
        writer.parts.append(describe_frame(attributes))
        yield path, writer.text()
        for table, name, part in list_parts(attributes):
            below = f"{path}.{escape_name(name)}"
            if table == "module" and self._is_unmet_module(part):
                yield from self._walk_module(below, part)
                continue
            writer = self._writer(below)
            writer.parts.append(f"{table} " if table else "")
            self._write(writer, part, name)
            yield below, writer.text()

    def _writer(self, path: str | None = None, digests: bool = False) -> Writer:
        return Writer(self._memory, self._find_handler, path, self._digest_class if digests else None)

    def _write(self, writer: Writer, value: object, name: object = None) -> None:
        self._attempt(writer, lambda: writer.write_named(name, value))

    @staticmethod
    def _attempt(writer: Writer, write: Callable[[], None]) -> None:
        """Writes something, and keeps nothing of it if it has no value. No mode of torch's sees what is asked."""
        with torch._C.DisableTorchFunction():
            reason = writer.attempt(write)
        if reason is not None:
            raise Declined(reason if writer.path is None else f"{writer.path}: {reason}", Scope.VALUE)

    def _find_handler(self, cls: type) -> Handler:
        handler = self._memory.handlers.get(id(cls))
        if handler is None:
            handler = self._memory.handlers[id(cls)] = find_handler(cls)
            self._memory.held[id(cls)] = cls
        return handler

    def _find_layout(self, cls: type) -> ObjectLayout:
        layout: ObjectLayout | None = self._memory.layouts.get(id(cls))
        if layout is None:
            layout = self._memory.layouts[id(cls)] = find_layout(cls)
            self._memory.held[id(cls)] = cls
        return layout

    def _look_at_classes(self) -> None:
        pending = self._memory.pending
        while pending:
            cls = pending.pop()
            try:
                self._memory.contents[id(cls)] = make_content(self._writer(), cls)
            except Declined as declined:  # there is too much of it
                declined.require(Scope.VALUE, Scope.AMOUNT)
                pending.append(cls)
                raise

    def _digest_class(self, cls: type) -> str:
        self._look_at_classes()
        graphs = self._memory.graphs
        if id(cls) not in graphs:
            graphs[id(cls)] = digest_graph(self._memory, cls)
        return f"#{graphs[id(cls)]}"


def escape_name(name: object) -> str:
    """Returns a name as a part of a path, in which dots, spaces and what else could mislead are written as numbers.

    Raises:
        Declined: if it is no string.
    """
    if type(name) is not str:
        raise Declined("the name of an attribute is not a string", Scope.VALUE)
    return "".join(char if char.isalnum() or char in "_-" else f"%{ord(char):x}%" for char in name)


def list_lines(classes: Mapping[str, ClassTexts]) -> Iterator[NamedValue]:
    """Yields each class with its hash, by its name, and behind each its own attributes.

    Each attribute is a line ``class:name``, in their order, so that a comparison of keys names what changed.
    """
    for name, (hash_, attributes) in sorted(classes.items()):
        yield "_".join(name.split()), hash_
        for attribute, text in attributes:
            yield "_".join(f"{name}:{attribute}".split()), text
