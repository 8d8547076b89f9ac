"""One text being written: a walk over values that names each object once and comes back to it by that name.

Values that are nothing but what they say (numbers, strings, dtypes) have equal texts if and only if they are of one
type and equal to the last bit: 1, 1.0 and True differ, and so do 0.0 and -0.0; NaN equals itself. Only exact types are
literals, so that no code of a subclass runs. Which strings are written out, ``process/secrets.py`` decides.

Values without an identity that matters (numbers, strings, tuples) are written wherever they are met. Objects are
written where they are met first, and as ``@name`` from then on, so that two equal lists differ from one list that is
met twice, and a cycle ends. Three kinds of names:

- in a walk, the path where the object was met; they last as long as the describer;
- for tensors and bare ``object()``s, which are told apart by nothing but their identity, names that last, too:
  ``lasting~0`` and so on, in the order in which they are met;
- for everything else a number that begins again with each text.

So descriptions are equal in two processes if these describe the same things in the same order. What is known of them is
in a ``Memory``, where everything is found by identity, never by a hash or an equality that may be code of others, and
kept alive, so that no identity is used twice.
"""

from __future__ import annotations

import hashlib
import re
import types
from collections.abc import Callable, Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from fusioncache.accelerators.programs.introspection import by_identity
from fusioncache.ir import Declined, Scope, is_declined
from fusioncache.process.secrets import TextKind, find_kind, write_text

_PLAIN_NAME = re.compile(r"[\w.<>\-]+")


def digest(text: str) -> str:
    """Returns the hash of a text that stands for it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def write_name(name: object) -> str:
    """Returns a name of a class, a function or a module as it is if it is a plain one, else as a text."""
    if type(name) is str and _PLAIN_NAME.fullmatch(name):
        return name
    return write_text(name, TextKind.NAME) if type(name) is str else "(unnamed)"


_module_of = type.__dict__["__module__"].__get__
_qualified_name_of = type.__dict__["__qualname__"].__get__


def write_class_name(cls: type) -> str:
    """Returns module and qualified name of a class, without asking its metaclass."""
    return f"{write_name(_module_of(cls))}.{write_name(_qualified_name_of(cls))}"


def is_of_module(cls: type, module: str) -> bool:
    """Returns whether a class says that it is of a module or of one below it."""
    return write_class_name(cls).startswith(f"{module}.")


def _write_integer(value: int) -> str:
    return repr(value) if value.bit_length() <= 1024 else hex(value)  # Python refuses very long ones in decimal


def _write_complex(value: complex) -> str:
    return f"complex({value.real!r}, {value.imag!r})"


WRITERS: Mapping[type, Callable[[Any], str]] = {
    type(None): repr,
    bool: repr,
    int: _write_integer,
    float: repr,
    complex: _write_complex,
    str: write_text,
    bytes: write_text,
    type(Ellipsis): repr,
    type(NotImplemented): repr,
    torch.dtype: repr,
    torch.device: repr,
    torch.layout: repr,
    torch.memory_format: repr,
    torch.qscheme: repr,
}
"""What writes a value, by its type."""

LITERALS = by_identity(*WRITERS.items())
"""The same, by the identity of the type: the hash of a type may be code of its metaclass."""


@dataclass(frozen=True, slots=True)
class ClassContent:
    """What a class is by itself.

    Attributes:
        digest: the hash of its text, in which other classes stand by their names.
        classes: the classes that the text names.
        attributes: the parts of the text that stand for its own attributes, each with the attribute's name; of a long
            one the beginning, and its hash.
    """

    digest: str
    classes: tuple[type, ...]
    attributes: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Memory:
    """The tables of a describer.

    Attributes:
        names: the names that last, by the object's identity.
        storages: the name of the first tensor in each storage, and the storage, by its address.
        held: each object that was described, by its identity.
        codes: each code object that was described.
        loose_globals: the namespaces of functions that are no module's, by identity and the names that were looked up.
        code_digests: the hash of each code object that was looked at.
        class_names: the name of each class that was met.
        contents: what each class is, for those that were looked at.
        pending: the classes that were met and not looked at.
        unknown: why an attribute of a class, by the class's name and its own, has no value.
        graphs: the hash of each class with all classes that it reaches.
        handlers: what writes the instances of each class that was met.
        layouts: where the instances of each class of modules keep their state.
        path_counts: how many objects have a path's name.
        values: how many values were written.
        lasting: how many names without a path last.
        taken: how many classes have each name.
    """

    names: dict[int, str] = field(default_factory=dict)
    storages: dict[int, tuple[str, object]] = field(default_factory=dict)
    held: dict[int, object] = field(default_factory=dict)
    codes: dict[int, types.CodeType] = field(default_factory=dict)
    loose_globals: dict[tuple[int, str], object] = field(default_factory=dict)
    code_digests: dict[int, tuple[types.CodeType, str]] = field(default_factory=dict)
    class_names: dict[int, tuple[type, str]] = field(default_factory=dict)
    contents: dict[int, ClassContent] = field(default_factory=dict)
    pending: list[type] = field(default_factory=list)
    unknown: dict[tuple[str, str], str] = field(default_factory=dict)
    graphs: dict[int, str] = field(default_factory=dict)
    handlers: dict[int, Any] = field(default_factory=dict)
    layouts: dict[int, Any] = field(default_factory=dict)
    path_counts: dict[str, int] = field(default_factory=dict)
    values: int = 0
    lasting: int = 0
    taken: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Memory:
        """Returns a memory that knows what this one knows, and learns for itself."""
        tables = {each.name: getattr(self, each.name) for each in fields(self)}
        return Memory(**{name: copy(table) for name, table in tables.items()})

    def name_class(self, cls: type) -> str:
        """Returns the name of a class, with a number if another class has the same one."""
        known = self.class_names.get(id(cls))
        if known is None:
            name = write_class_name(cls)
            count = self.taken[name] = self.taken.get(name, 0) + 1
            known = self.class_names[id(cls)] = cls, name if count == 1 else f"{name}({count})"
            self.pending.append(cls)
        return known[1]


MOST_VALUES = 1_000_000
DEEPEST = 150
LONGEST_TEXT = 10_000
"""Characters that are written out of one text: a table of words may be a part of a model."""
_ABOUT_SECRETS = frozenset({"name", "type", "_name_"})
"""What a secret may have beside its value."""

Handler = Callable[["Writer", Any], None]
"""Writes a value of the type that it stands for."""


class Writer:
    """The text of one value, or of one line of a walk.

    Attributes:
        memory: what the describer knows so far.
        parts: the text so far.
        path: where a walk is; None if the text is no line of one.
        classes: the classes that the text names.
    """

    def __init__(
        self,
        memory: Memory,
        find_handler: Callable[[type], Handler],
        path: str | None = None,
        digests: Callable[[type], str] | None = None,
    ) -> None:
        """Makes a writer.

        Args:
            memory: what the describer knows so far.
            find_handler: what finds the handler for a type.
            path: where a walk is, if the text is a line of one.
            digests: what returns the digest of a class and everything that it reaches, to be written behind its name.
        """
        self.memory = memory
        self.parts: list[str] = []
        self.classes: list[type] = []
        self._find_handler = find_handler
        self._digests = digests
        self.path = path
        self._names: MutableMapping[int, str] = {} if path is None else memory.names
        self._journal: list[tuple[MutableMapping[Any, Any], object]] = []
        self._kind = TextKind.VALUE
        self._depth = 0
        self._count = 0 if path is None else memory.path_counts.get(path, 0)

    def text(self) -> str:
        """Returns what was written. Of a long text it is the beginning, and the hash of all of it."""
        if self.path is not None:
            self.memory.path_counts[self.path] = self._count
        text = "".join(self.parts)
        if len(text) <= LONGEST_TEXT:
            return text
        return f"{text[:LONGEST_TEXT]}... {len(text)} characters, hash {digest(text)}"

    def write(self, value: Any) -> None:
        """Writes a value.

        Raises:
            Declined: if it has none.
        """
        self.memory.values += 1
        if self.memory.values > MOST_VALUES:
            raise Declined(f"there are more than {MOST_VALUES} values", Scope.AMOUNT)
        literal = LITERALS.get(id(type(value)))
        if literal is not None:
            is_usual = self._kind is TextKind.VALUE or type(value) not in (str, bytes)
            self.parts.append(literal(value) if is_usual else write_text(value, self._kind))
            return
        self._depth += 1
        if self._depth > DEEPEST:
            raise Declined(f"values are nested more than {DEEPEST} deep", Scope.AMOUNT)
        self._find_handler(type(value))(self, value)
        self._depth -= 1

    def write_tagged(self, tag: str, *values: object) -> None:
        """Writes values between angle brackets behind a word that says what they are of."""
        self.parts.append(f"<{tag}")
        for value in values:
            self.parts.append(" ")
            self.write(value)
        self.parts.append(">")

    def write_named(self, name: object, value: object, write: Handler | None = None) -> None:
        """Writes a value that has a name, by which it and what it consists of may be secret, or names themselves.

        Args:
            name: of the value.
            value: the value.
            write: writes it; by itself if it is not given.
        """
        before, kind = self._kind, find_kind(name) if type(name) is str else TextKind.VALUE
        if before is TextKind.SECRET:
            kind = TextKind.NAME if type(name) is str and name in _ABOUT_SECRETS else TextKind.SECRET
        self._kind = kind
        (write or Writer.write)(self, value)
        self._kind = before

    def write_name(self, name: object) -> None:
        """Writes what a dictionary or an object has a value under."""
        before, self._kind = self._kind, TextKind.NAME
        self.write(name)
        self._kind = before

    def write_class(self, cls: type) -> None:
        """Writes the name of a class, and notes that the text depends on it."""
        self.classes.append(cls)
        self.parts.append(self.memory.name_class(cls))
        if self._digests is not None:
            self.parts.append(self._digests(cls))

    def enter(self, value: object, lasting: bool = False) -> bool:
        """Returns whether an object is met for the first time; writes its name if it is not.

        Args:
            value: the object.
            lasting: whether its name is to last longer than the text.
        """
        identity = id(value)
        name = self.memory.names.get(identity) or self._names.get(identity)
        if name is not None:
            self.parts.append(f"@{name}")
            return False
        if self.path is not None:
            name = f"{self.path}~{self._count}" if self._count else self.path
            self._count += 1
        elif lasting:
            name = f"lasting~{self.memory.lasting}"
            self.memory.lasting += 1
        else:
            name = f"~{len(self._names)}"
        self.note(self.memory.names if lasting else self._names, identity, name)
        self.note(self.memory.held, identity, value)
        return True

    def note(self, table: MutableMapping[Any, Any], key: object, value: object) -> None:
        """Notes something in a table of the memory, so that ``attempt`` can take it back."""
        if key not in table:
            table[key] = value
            self._journal.append((table, key))

    def attempt(self, write: Callable[[], None]) -> str | None:
        """Writes something that may have no value. Then nothing of it stays, and the reason is returned.

        Raises:
            Declined: if there are too many values, or they are nested too deeply.
        """
        before = self._state()
        try:
            write()
        except RecursionError as error:
            self._restore(before)
            raise Declined("values are nested too deeply", Scope.AMOUNT) from error
        except Exception as error:  # a tensor without a storage, a dict that another thread changes, a damaged object
            self._restore(before)
            if is_declined(error, Scope.AMOUNT):
                raise
            if is_declined(error, Scope.VALUE):
                return error.reason
            return f"it could not be read ({type(error).__name__})"
        return None

    def write_alone(self, value: object) -> str:
        """Returns what would be written for a value, and writes nothing."""
        before = self._state()
        self.write(value)
        text = "".join(self.parts[before[0] :])
        self._restore(before)
        return text

    def _state(self) -> tuple[Any, ...]:
        counts = len(self.parts), len(self._journal), len(self.classes), self._depth, self._count, self.memory.lasting
        return (*counts, self._kind)

    def _restore(self, state: tuple[Any, ...]) -> None:
        parts, journal, classes, self._depth, self._count, self.memory.lasting, self._kind = state
        del self.parts[parts:]
        for table, key in self._journal[journal:]:
            del table[key]
        del self._journal[journal:]
        del self.classes[classes:]
