"""Objects and classes: the state that Python keeps for an object, and what a class consists of. No code of it is run.

The state is the instance's ``__dict__``, its slots, and the content of a builtin type that the class is derived from. A
class written in C may keep more than that. It does if its instances are larger than those of its base and its slots
account for; then they have no value here, unless its type has a handler of its own.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch

from fusioncache.accelerators.programs.containers import (
    CONTAINERS,
    CONTENTS,
    TENSORS,
    describe_frame,
    list_parts,
    write_foreign_tensor,
    write_module,
    write_nothing,
    write_pairs,
)
from fusioncache.accelerators.programs.functions import FUNCTIONS, LEFT_OUT, find_reviewed, why_left_out
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
from fusioncache.accelerators.programs.literals import LITERALS, digest, write_class_name, write_name
from fusioncache.accelerators.programs.writer import ClassContent, Handler, Memory, Writer
from fusioncache.ir import Declined, Scope

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
        names: the names of the classes of the MRO, by which it is known what is left out.
    """

    content: Handler
    slots: tuple[tuple[str, Any], ...]
    attributes: Callable[[object], dict[str, object]] | None
    names: frozenset[str]

    def read_attributes(self, value: object) -> dict[str, object]:
        """Returns the instance's own attributes but for those that are left out.

        Raises:
            Declined: if they are in a dict of a class of its own.
        """
        attributes = {} if self.attributes is None else self.attributes(value)
        if type(attributes) is not dict:
            raise Declined(f"the attributes of a {write_class_name(type(value))} are not in a dict", Scope.VALUE)
        if not self.names:
            return attributes
        return {name: item for name, item in attributes.items() if why_left_out(self.names, name) is None}


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
    names = frozenset(map(write_class_name, mro_of(cls))) & LEFT_OUT.keys()
    return ObjectLayout(content, tuple(slots), _find_attributes(cls), names)


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
    handler = FUNCTIONS.get(id(cls)) or CONTAINERS.get(id(cls)) or TENSORS.get(id(cls))
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
