"""Values as text: two values that a trace could tell apart have different texts, in this process and in another.

    describer = Describer()
    dict(describer.walk("model", model))     # {"model": "module litgpt.model.GPT", "model.lm_head": ..., ...}
    describer.describe(config)               # a line
    describer.classes                        # {"litgpt.model.GPT": "5f...", ...}: what the walks' texts name

Nothing of a value's own is called: no ``__repr__``, ``__eq__``, ``__hash__``, ``__getattr__``, ``__reduce__`` or
property. What has state that cannot be read so (a lock, a file, a generator, most of what is written in C) raises
``Declined``.

A describer is made anew for each comparison. It remembers classes and code, so it must not outlive a change of these.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch

from fusioncache.accelerators.programs.containers import describe_frame, list_parts
from fusioncache.accelerators.programs.functions import LEFT_OUT
from fusioncache.accelerators.programs.introspection import is_derived, mro_of
from fusioncache.accelerators.programs.literals import write_class_name
from fusioncache.accelerators.programs.objects import (
    ObjectLayout,
    digest_graph,
    find_handler,
    find_layout,
    make_content,
    write_fixed_state,
)
from fusioncache.accelerators.programs.writer import Handler, Memory, Writer
from fusioncache.ir import Declined, Scope
from fusioncache.ir.keys import NamedValue

type ClassTexts = tuple[str, tuple[tuple[str, str], ...]]
"""The hash of a class, which says all of it, and its own attributes, each with the beginning of its text."""


class Describer:
    """Describes values, and remembers what it described.

    Args:
        memory: what it knows already; nothing if there is none.
    """

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory if memory is not None else Memory()
        self._graphs: dict[int, str] = {}
        self._layouts: dict[int, ObjectLayout] = {}

    def copy(self) -> Describer:
        """Returns a describer that knows what this one knows, so that each may go on for itself."""
        self._look_at_classes()
        return Describer(self._memory.copy())

    def forget_values(self) -> Describer:
        """Returns a describer that shares what this one knows of classes, and knows no other value."""
        describer = Describer(replace(self._memory, names={}, storages={}, held={}, values=0, lasting=0))
        describer._graphs = self._graphs
        return describer

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
        the texts, and ``classes`` says what they are. For a name see ``describe``.

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

    @property
    def classes(self) -> Mapping[str, str]:
        """Every class met so far: its name, numbered if several have it, and the hash of what it is by itself."""
        return {name: digest for name, (digest, _) in self.list_classes().items()}

    def list_classes(self) -> dict[str, ClassTexts]:
        """Returns every class met so far by its name, with its hash and its own attributes."""
        self._look_at_classes()
        contents = self._memory.contents
        found = ((name, contents[identity]) for identity, (_, name) in self._memory.class_names.items())
        return {name: (content.digest, content.attributes) for name, content in found}

    @property
    def unknown(self) -> Mapping[tuple[str, str], str]:
        """Why an attribute of a class or of its instances has no value or is left out, by the names of both.

        The class's name is that in ``classes``.
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
        layout = self._layouts.get(id(cls))
        if layout is None:
            layout = self._layouts[id(cls)] = find_layout(cls)
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
        if id(cls) not in self._graphs:
            self._graphs[id(cls)] = digest_graph(self._memory, cls)
        return f"#{self._graphs[id(cls)]}"


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
