"""Classes: what each is by itself, and what it is with everything that it reaches.

A class by itself is its metaclass, its MRO and everything in its own ``__dict__``, with other classes by their names.
Each class has a name of its own, so that the contents of all classes that are met, name by name, are a description of
the whole graph of classes, cycles and all.

An attribute of a class that has no value (a lock, a logger) would make every model of the class one without a value. It
is written as unknown, with the type and the reason, and noted in the memory. This is safe only together with the
recorder, which refuses a program for which such an attribute was read: one that nobody read has changed nothing. What
changed from a value to an unknown one, or to an unknown one of another type, is a difference all the same.
"""

from __future__ import annotations

import _abc
import types
from collections.abc import Iterator
from typing import Any, cast

import torch

from fusioncache.accelerators.programs.dynamo_tags import MARK, find_original
from fusioncache.accelerators.programs.introspection import is_derived, is_written_in_python, mro_of, namespace_of
from fusioncache.accelerators.programs.literals import LITERALS, digest, write_class_name, write_name
from fusioncache.accelerators.programs.memory import ClassContent, Memory
from fusioncache.accelerators.programs.objects import is_enumeration
from fusioncache.accelerators.programs.reviewed import LEFT_OUT
from fusioncache.accelerators.programs.writer import Writer

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
    """Returns whether an attribute says nothing: it follows from others, or is what somebody remembers of them."""
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
        value = _find_original(writer, value)
    if name == "__annotations__" and type(value) is dict:
        parts.append(", ".join(f"{write_name(key)}: {_describe_annotation(item)}" for key, item in value.items()))
    elif name == "_abc_impl":
        parts.append(write_registered(cls))
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
    return literal(value) if literal is not None else write_class_name(class_of_annotation(value))


def class_of_annotation(value: object) -> type:
    """Returns the class by which an annotation is called."""
    return cast(type, value) if is_derived(type(value), type) else type(value)


def write_registered(cls: type) -> str:
    """Returns the names of the classes that were registered with an abstract one."""
    registered = (reference() for reference in _abc._get_dump(cls)[0])
    return ", ".join(sorted(write_class_name(other) for other in registered if other is not None))


def _find_original(writer: Writer, function: types.FunctionType) -> types.FunctionType:
    """Returns the function that is described in place of one that stands around it, which was met as well."""
    original = find_original(function)
    if original is not function and writer.memory.met is not None:
        writer.memory.met += (function, *(function.__closure__ or ()))
    return original


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
