"""Describes values as text: values that a trace could distinguish have different texts, in all processes.

    describer = Describer()
    dict(describer.walk("model", model))     # {"model": "module litgpt.model.GPT", "model.lm_head": ..., ...}
    describer.describe(config)               # a line
    dict(describer.list_classes())           # {"litgpt.model.GPT": "5f...", ...}: the classes in these texts

No code of a value runs: no ``__repr__``, ``__eq__``, ``__hash__``, ``__getattr__``, ``__reduce__`` or property. A value
whose state cannot be read in this way (a lock, a file, a generator, most types written in C) raises ``Declined``.

Each comparison needs a new describer. It caches classes and code, so it must not outlive a change of these.

The state of an object is the instance's ``__dict__``, its slots, and the content of the builtin type that its class is
derived from. A class written in C may store more than that. It does if its instances are larger than the base and the
slots account for. Then they are declined, unless the type has a handler of its own.

The content of a class is its metaclass, its MRO and everything in its own ``__dict__``, with other classes by their
names. Class names are unique, so the contents of all visited classes, by name, describe the whole graph of classes,
including cycles.

A class attribute that cannot be described (a lock, a logger) would prevent the description of every model of the class.
So it is written as unknown, with its type and the reason, and is noted in the memory. This is safe only together with
the recorder, which refuses a program whose trace read such an attribute. A change from a described value to an unknown
one, or to an unknown one of another type, is still a difference.
"""

from __future__ import annotations

import _abc
import enum
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
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
from fusioncache.accelerators.programs.functions import FUNCTIONS, find_reviewed, list_left_out
from fusioncache.accelerators.programs.introspection import (
    ABSENT,
    MARK,
    find_in_class,
    find_original,
    is_derived,
    is_written_in_python,
    list_derived,
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
    """The places where the instances of a class store their state.

    Attributes:
        content: the handler for the content of the builtin type that the class is derived from.
        slots: the name and the descriptor of each slot.
        attributes: returns the instance's ``__dict__``; None if it has none.
        left_out: the names of attributes that are left out.
    """

    content: Handler
    slots: tuple[tuple[str, Any], ...]
    attributes: Callable[[object], dict[str, object]] | None
    left_out: frozenset[str]

    def read_attributes(self, value: object) -> dict[str, object]:
        """Returns the instance's own attributes, except for those that are left out.

        Raises:
            Declined: if they are in an instance of a subclass of ``dict``.
        """
        attributes = {} if self.attributes is None else self.attributes(value)
        if type(attributes) is not dict:
            raise Declined(f"the attributes of a {write_class_name(type(value))} are not in a dict", Scope.VALUE)
        if not self.left_out:
            return attributes
        return {name: item for name, item in attributes.items() if name not in self.left_out}


def find_layout(cls: type) -> ObjectLayout:
    """Returns the places where the instances of a class store their state.

    Raises:
        Declined: if some of their state cannot be found.
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
    left_out = frozenset(chain.from_iterable(map(list_left_out, mro_of(cls))))
    return ObjectLayout(content, tuple(slots), _find_attributes(cls), left_out)


def _find_attributes(cls: type) -> Callable[[object], dict[str, object]] | None:
    found = find_in_class(cls, "__dict__")
    if isinstance(found, types.GetSetDescriptorType | types.MemberDescriptorType):
        return found.__get__
    if found is not ABSENT:
        raise Declined(f"the attributes of a {write_class_name(cls)} are behind a __dict__ of its own", Scope.VALUE)
    if _dict_offset_of(cls):
        raise Declined(f"the attributes of a {write_class_name(cls)} cannot be read", Scope.VALUE)
    return None


def _name_namespace(writer: Writer, module: object, namespace: object) -> None:
    """Gives the ``__dict__`` of a module a name, so that a read of it differs from that of an equal dictionary.

    Raises:
        Declined: if it was described as a dictionary before.
    """
    if id(namespace) in writer.memory.held:
        raise Declined("a module has a __dict__ that was read as a dictionary before", Scope.VALUE)
    writer.note(writer.memory.names, id(namespace), f"{writer.memory.names[id(module)]}.__dict__")
    writer.note(writer.memory.held, id(namespace), namespace)


def find_handler(cls: type) -> Handler:
    """Returns the handler that writes the instances of a class.

    Raises:
        Declined: if the instances cannot be described.
    """
    handler = _find_special(cls)
    if handler is not None:
        return handler
    layout = find_layout(cls)
    is_module = is_derived(cls, torch.nn.Module)

    def write(writer: Writer, value: object) -> None:
        if writer.enter(value, lasting=is_module):
            if is_module and layout.attributes is not None:
                _name_namespace(writer, value, layout.attributes(value))
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
    """Returns the handler for a class whose layout is not enough to describe its instances; None if it is enough."""
    handler = FUNCTIONS.get(id(cls)) or CONTAINERS.get(id(cls)) or find_reviewed(cls)
    if handler is not None:
        return handler
    if is_derived(cls, type):
        return _write_class_value
    if is_derived(cls, torch.Tensor):
        return write_foreign_tensor
    if is_derived(cls, types.ModuleType):
        return write_module
    return _write_bare_object if cls is object else None


def write_fixed_state(writer: Writer, value: object, layout: ObjectLayout) -> None:
    """Writes an object's content of the builtin base type, and its slots."""
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
    """Writes the attributes of an object; those of a module as ``list_parts`` yields them."""
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


_NOT_DESCRIBED = {
    "__doc__": "it is documentation, in which there may be representations of values",
    "_autograd_function_id": "it counts the classes of the process",
    "__firstlineno__": "it is where the class is written",
    "__static_attributes__": "it follows from the methods, in an order that may be another one in each process",
}
"""Attributes of any class that are not described, with the reason. A program that reads one is not stored."""

_LONGEST_PART = 120
"""Characters of the longest text of a class attribute that people are shown in full."""

_name_of = type.__dict__["__name__"].__get__
_bases_of = type.__dict__["__bases__"].__get__


def write_content(writer: Writer, cls: type) -> Iterator[tuple[str, str]]:
    """Writes the content of a class, and yields the name and the text of each attribute.

    Of a class written in C only its name, its metaclass and its bases are written.
    """
    parts = writer.parts
    parts.append(f"class {writer.memory.name_class(cls)} {write_name(_name_of(cls))} ")
    writer.write_class(type(cls))
    for base in mro_of(cls)[1:]:
        parts.append(" ")
        writer.write_class(base)
    if not is_written_in_python(cls):
        return
    parts += [f" with {name}" for name in ("__dict__", "__weakref__") if name in namespace_of(cls)]
    for base in _bases_of(cls):  # different bases may have the same MRO
        parts.append(" base ")
        writer.write_class(base)
    for name, reason in list_left_out(cls).items():
        _note_unknown(writer, cls, name, reason)
    if cls is torch.nn.Module:
        _note_unknown(writer, cls, MARK, "it says that Dynamo ran in the process")
    for name, value in namespace_of(cls).items():
        if name in _NOT_DESCRIBED and type(value) in (str, int, tuple):
            _note_unknown(writer, cls, name, _NOT_DESCRIBED[name])
        elif not _is_left_out(cls, name, value):
            parts.append(f"\n{write_name(name)} ")
            before = len(parts)
            _write_attribute(writer, cls, name, value)
            yield name, "".join(parts[before:])


def _is_left_out(cls: type, name: str, value: object) -> bool:
    """True if an attribute is redundant: it follows from others, or caches a result of them."""
    if name in ("__dict__", "__weakref__"):
        return type(value) is types.GetSetDescriptorType
    if name == "__doc__":
        return value is None
    if name == "__slotnames__":  # a cache that ``copyreg`` fills when an instance is copied
        return type(value) is list
    if name == MARK:
        return cls is torch.nn.Module and type(value) is bool
    if name == "_value2member_map_":  # a table of the members, to which a flag adds combinations on first use
        return is_enumeration(cls) and (is_derived(cls, enum.Flag) or not _has_value_aliases(value))
    return name in list_left_out(cls)


def _has_value_aliases(table: Any) -> bool:
    """True if an enumeration finds a member by a value that is not the member's own."""
    return type(table) is not dict or any(vars(each).get("_value_") is not key for key, each in table.items())


def _note_unknown(writer: Writer, cls: type, name: str, reason: str) -> None:
    writer.memory.unknown.setdefault(id(cls), {})[name] = reason


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
    """Returns the text of a literal, or the name of a type. Annotations are not called."""
    literal = LITERALS.get(id(type(value)))
    if literal is not None:
        return literal(value)
    return write_class_name(cast(type, value) if is_derived(type(value), type) else type(value))


def _write_registered(cls: type) -> str:
    """Returns the names of the classes that were registered with an abstract base class or with one derived from it."""
    abstract = [each for each in list_derived(cls) if "_abc_impl" in namespace_of(each)]
    registered = (reference() for each in abstract for reference in _abc._get_dump(each)[0])
    return ", ".join(sorted(write_class_name(other) for other in registered if other is not None))


def digest_graph(memory: Memory, cls: type) -> str:
    """Returns the digest of a class and of all classes that it reaches."""
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
    """Returns the content of a class: its digest, the classes that it names, and its attributes."""
    attributes = tuple((name, _shorten(text)) for name, text in write_content(writer, cls))
    return ClassContent(digest(writer.text()), tuple(writer.classes), attributes)


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_PART else f"{text[:_LONGEST_PART]}... hash {digest(text)}"


class Describer:
    """Describes values, and caches descriptions of classes and names of objects.

    Args:
        memory: its initial tables; empty by default.
    """

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory if memory is not None else Memory()

    def copy(self) -> Describer:
        """Returns an independent describer with a copy of this one's memory."""
        self._look_at_classes()
        return Describer(self._memory.copy())

    def forget_values(self) -> Describer:
        """Returns a describer that shares this one's tables of classes and code, but has no names of other values."""
        return Describer(replace(self._memory, names={}, storages={}, held={}, values=0, lasting=0))

    def describe(self, value: object, name: object = None) -> str:
        """Returns a complete description of a value in one line, each class with the digest of all that it reaches.

        Objects that a walk visited are written as the walk's names for them. Other objects have names within this text
        only, except for tensors and bare ``object()``s, whose names last. So descriptions are comparable only if they
        are made in the same order.

        Args:
            value: to describe.
            name: of the value, if it has one. It determines whether texts are secret.

        Raises:
            Declined: if it cannot be described.
        """
        writer = self._writer(digests=True)
        self._write(writer, value, name)
        return writer.text()

    def walk(self, path: str, value: object, name: object = None) -> Iterator[tuple[str, str]]:
        """Yields the path and the text of each part of a value. Paths contain no spaces.

        Modules of torch.nn are walked attribute by attribute; any other value is one text. The texts refer to classes
        by name, and ``list_classes`` returns the contents of these. For ``name`` see ``describe``.

        Raises:
            Declined: if a part cannot be described. The reason begins with its path.
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

    def list_classes(self) -> Iterator[NamedValue]:
        """Yields the name and the digest of each visited class, by name, each followed by its own attributes.

        A name that recurs has a number. Each attribute is a line ``class:name``, in their order, so that a comparison
        of keys names what changed.
        """
        self._look_at_classes()
        for identity, (_, name) in sorted(self._memory.class_names.items(), key=lambda item: item[1][1]):
            content = self._memory.contents[identity]
            yield "_".join(name.split()), content.digest
            for attribute, text in content.attributes:
                yield "_".join(f"{name}:{attribute}".split()), text

    def list_unknown(self, cls: type) -> Mapping[str, str]:
        """Returns the attributes of a class and its instances that are in no description, each with the reason."""
        self._look_at_classes()
        by_class = (self._memory.unknown.get(id(base), {}) for base in reversed(mro_of(cls)))
        return {name: reason for unknown in by_class for name, reason in unknown.items()}

    @staticmethod
    def is_partly_unknown(cls: type) -> bool:
        """Returns whether descriptions of the instances of a class leave out attributes."""
        return any(map(list_left_out, mro_of(cls)))

    def covers(self, code: types.CodeType) -> bool:
        """Returns whether a code object was described, directly or as a constant of another."""
        self._look_at_classes()
        return id(code) in self._memory.codes

    def covers_global(self, namespace: Mapping[str, object], name: str) -> bool:
        """Returns whether the value of a function's global was described together with the function.

        That is so for globals that belong to no module, such as those of a function that was made by ``exec``.
        """
        self._look_at_classes()
        return (id(namespace), name) in self._memory.loose_globals

    def names(self, value: object) -> bool:
        """Returns whether all texts identify this very object: it has a lasting name, or it is a visited class."""
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
        """Runs a write, and undoes it if the value cannot be described. Torch function modes are off meanwhile."""
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
            except Declined as declined:  # it exceeds a limit on amount
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
    """Returns a name as a part of a path, with dots, spaces and other special characters as hexadecimal numbers.

    Raises:
        Declined: if it is not a string.
    """
    if type(name) is not str:
        raise Declined("the name of an attribute is not a string", Scope.VALUE)
    return "".join(char if char.isalnum() or char in "_-" else f"%{ord(char):x}%" for char in name)
