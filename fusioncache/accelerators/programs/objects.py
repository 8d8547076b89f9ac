"""Objects of classes: the class, and the state that Python keeps for it, read without running any code of the class.

The state is the instance's ``__dict__``, its slots, and the content of a builtin type that the class is derived from. A
class written in C may keep more than that. It does if its instances are larger than those of its base and its slots
account for; then they have no value here, unless its type has a handler of its own.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fusioncache.accelerators.programs.code import FUNCTIONS
from fusioncache.accelerators.programs.containers import CONTAINERS, write_module, write_pairs
from fusioncache.accelerators.programs.contents import CONTENTS, write_nothing
from fusioncache.accelerators.programs.introspection import (
    ABSENT,
    find_in_class,
    is_derived,
    is_written_in_python,
    mro_of,
    namespace_of,
)
from fusioncache.accelerators.programs.literals import write_class_name
from fusioncache.accelerators.programs.modules import describe_frame, list_parts
from fusioncache.accelerators.programs.reviewed import LEFT_OUT, find_reviewed, why_left_out
from fusioncache.accelerators.programs.tensors import TENSORS, write_foreign_tensor
from fusioncache.accelerators.programs.writer import Handler, Writer
from fusioncache.ir.errors import Declined, Scope

_POINTER = 8
_IMMUTABLE = (int, float, complex, str, bytes, tuple, frozenset)

_base_of = type.__dict__["__base__"].__get__
_size_of = type.__dict__["__basicsize__"].__get__
_dict_offset_of = type.__dict__["__dictoffset__"].__get__


@dataclass(frozen=True, slots=True)
class Layout:
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


def find_layout(cls: type) -> Layout:
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
    return Layout(content, tuple(slots), _find_attributes(cls), names)


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
        return lambda writer, value: writer.write_below(_name_of_member(layout, value), write, value)
    return write


def _name_of_member(layout: Layout, value: object) -> object:
    return None if layout.attributes is None else layout.attributes(value).get("_name_")


def find_plain_layout(cls: type) -> Layout | None:
    """Returns where objects have all of their state that may change; None if they have more, or are of a special kind.

    It is in slots and attributes. The content of a number, a text or a tuple never changes.
    """
    if _find_special(cls) is not None:
        return None
    try:
        layout = find_layout(cls)
    except Declined as declined:
        declined.require(Scope.VALUE, Scope.AMOUNT)
        return None
    is_fixed = layout.content is write_nothing or any(is_derived(cls, each) for each in _IMMUTABLE)
    return layout if is_fixed else None


def _find_special(cls: type) -> Handler | None:
    """Returns what writes the instances of a class of which there is more to know than where they keep their state."""
    handler = FUNCTIONS.get(id(cls)) or CONTAINERS.get(id(cls)) or TENSORS.get(id(cls))
    if handler is not None:
        return handler
    reviewed = find_reviewed(cls)
    if reviewed is not None:
        return reviewed
    if is_derived(cls, type):
        return _write_class
    if is_derived(cls, torch.Tensor):
        return write_foreign_tensor
    if is_derived(cls, types.ModuleType):
        return write_module
    return _write_bare_object if cls is object else None


def write_fixed_state(writer: Writer, value: object, layout: Layout) -> None:
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


def _write_class(writer: Writer, value: type) -> None:
    writer.parts.append("class ")
    writer.write_class(value)


def _write_bare_object(writer: Writer, value: object) -> None:
    if writer.enter(value, lasting=True):
        writer.parts.append("<object>")


def is_enumeration(cls: type) -> bool:
    """Returns whether a class is an enumeration."""
    return is_derived(type(cls), enum.EnumType)
