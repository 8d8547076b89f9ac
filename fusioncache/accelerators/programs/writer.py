"""Writer of descriptions: it walks over values, gives each object a name, and refers to it by that name afterwards.

Literals (numbers, strings, dtypes) have equal texts if and only if they are of one type and bitwise equal: 1, 1.0 and
True differ, and so do 0.0 and -0.0; NaN equals itself. Only exact types are literals, so that no code of a subclass
runs. ``process/secrets.py`` decides which strings are written in clear.

Values whose identity does not matter (numbers, strings, tuples) are written at each occurrence. Objects are written at
their first occurrence, and as ``@name`` afterwards. So two equal lists differ from two references to one list, and
cycles end. There are three kinds of names:

- in a walk, the path of the first occurrence, valid as long as the describer;
- for tensors and bare ``object()``s, which only their identity distinguishes, ``lasting~0`` and so on, in the order of
  first occurrence, also valid as long as the describer;
- for all other objects, a number that restarts with each text.

So two processes get equal descriptions if they describe the same things in the same order. A ``Memory`` has the names
and digests so far. It looks objects up by id, never by a hash or an equality that may be foreign code, and keeps them
alive, so that no id is reused.
"""

from __future__ import annotations

import hashlib
import math
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
    """Returns the digest of a text: 32 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def write_name(name: object) -> str:
    """Returns a plain name of a class, a function or a module unchanged, any other as ``write_text`` writes it."""
    if type(name) is str and _PLAIN_NAME.fullmatch(name):
        return name
    return write_text(name, TextKind.NAME) if type(name) is str else "(unnamed)"


_module_of = type.__dict__["__module__"].__get__
_qualified_name_of = type.__dict__["__qualname__"].__get__


def write_class_name(cls: type) -> str:
    """Returns module and qualified name of a class, without running code of its metaclass."""
    return f"{write_name(_module_of(cls))}.{write_name(_qualified_name_of(cls))}"


def is_of_module(cls: type, module: str) -> bool:
    """True if the ``__module__`` of a class is this module or a submodule of it."""
    return write_class_name(cls).startswith(f"{module}.")


def _write_integer(value: int) -> str:
    return repr(value) if value.bit_length() <= 1024 else hex(value)  # Python refuses very long ones in decimal


def _write_float(value: float) -> str:
    return "-nan" if value != value and math.copysign(1, value) < 0 else repr(value)


def _write_complex(value: complex) -> str:
    return f"complex({_write_float(value.real)}, {_write_float(value.imag)})"


WRITERS: Mapping[type, Callable[[Any], str]] = {
    type(None): repr,
    bool: repr,
    int: _write_integer,
    float: _write_float,
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
"""Functions that write literals, by type."""

LITERALS = by_identity(*WRITERS.items())
"""The same, by the id of the type: the hash of a type may be code of its metaclass."""


@dataclass(frozen=True, slots=True)
class ClassContent:
    """The content of a class, with other classes only by name.

    Attributes:
        digest: of its text, in which names represent other classes.
        classes: the classes that the text names.
        attributes: names of its own attributes, each with its part of the text; a long part is cut, with a digest.
    """

    digest: str
    classes: tuple[type, ...]
    attributes: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Memory:
    """The tables of a describer.

    Attributes:
        names: the names valid as long as the describer, by object id.
        storages: the name of the first tensor in each storage, and the storage, by its address.
        held: each object that was described, by its id.
        codes: each code object that was described, by its id.
        loose_globals: namespaces that are no module's, by id and each global name that was looked up there.
        code_digests: each code object with a digest, and the digest, by its id.
        class_names: each class that was named, and its name, by its id.
        contents: the contents of the classes that were described, by class id.
        pending: classes that were named and not yet described.
        unknown: the attributes of a class that have no value, each with the reason, by class id.
        graphs: the digest of each class with all classes reachable from it, by class id.
        handlers: the handler for the instances of each class, by class id.
        layouts: where instances of each class of modules store their state, by class id.
        path_counts: how many objects are named after each path.
        values: how many values were written.
        lasting: how many ``lasting~`` names there are.
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
    unknown: dict[int, dict[str, str]] = field(default_factory=dict)
    graphs: dict[int, str] = field(default_factory=dict)
    handlers: dict[int, Any] = field(default_factory=dict)
    layouts: dict[int, Any] = field(default_factory=dict)
    path_counts: dict[str, int] = field(default_factory=dict)
    values: int = 0
    lasting: int = 0
    taken: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Memory:
        """Returns a memory with copies of all tables."""
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
"""How many characters of one text are written before its digest: a vocabulary may be a part of a model."""
_ABOUT_SECRETS = frozenset({"name", "type", "_name_"})
"""Fields beside the value of a secret that are themselves not secret."""

Handler = Callable[["Writer", Any], None]
"""Writes a value of one type."""


class Writer:
    """Writes the text of one value, or one line of a walk.

    Attributes:
        memory: of the describer.
        parts: the text so far.
        path: the current path of a walk; None outside of a walk.
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
            memory: of the describer.
            find_handler: returns the handler for a type.
            path: the current path of a walk, if the text is a line of one.
            digests: returns the digest of a class and all classes reachable from it, to be written after its name.
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
        """Returns the text. A long text is cut to its beginning, with the digest of the whole text."""
        if self.path is not None:
            self.memory.path_counts[self.path] = self._count
        text = "".join(self.parts)
        if len(text) <= LONGEST_TEXT:
            return text
        return f"{text[:LONGEST_TEXT]}... {len(text)} characters, hash {digest(text)}"

    def write(self, value: Any) -> None:
        """Writes a value.

        Raises:
            Declined: if it cannot be described, or there are too many values or they are nested too deeply.
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
        """Writes values in angle brackets, after a word for their type."""
        self.parts.append(f"<{tag}")
        for value in values:
            self.parts.append(" ")
            self.write(value)
        self.parts.append(">")

    def write_named(self, name: object, value: object, write: Handler | None = None) -> None:
        """Writes a value under a name. The name decides whether strings in the value are secrets or names.

        Args:
            name: of the value.
            value: the value.
            write: writes it; ``Writer.write`` by default.
        """
        before, kind = self._kind, find_kind(name) if type(name) is str else TextKind.VALUE
        if before is TextKind.SECRET:
            kind = TextKind.NAME if type(name) is str and name in _ABOUT_SECRETS else TextKind.SECRET
        self._kind = kind
        (write or Writer.write)(self, value)
        self._kind = before

    def write_name(self, name: object) -> None:
        """Writes a key of a dictionary or the name of an attribute."""
        before, self._kind = self._kind, TextKind.NAME
        self.write(name)
        self._kind = before

    def write_class(self, cls: type) -> None:
        """Writes the name of a class, and records that the text depends on it."""
        self.classes.append(cls)
        self.parts.append(self.memory.name_class(cls))
        if self._digests is not None:
            self.parts.append(self._digests(cls))

    def enter(self, value: object, lasting: bool = False) -> bool:
        """True if this is the first occurrence of an object, which then gets a name; else writes its name.

        Args:
            value: the object.
            lasting: whether the name stays valid after this text.
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
        """Adds an item to a table, if the key is new, and to the journal, so that ``attempt`` can undo it."""
        if key not in table:
            table[key] = value
            self._journal.append((table, key))

    def attempt(self, write: Callable[[], None]) -> str | None:
        """Writes something that may fail. If it fails, undoes all of it and returns the reason, else returns None.

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
        """Returns the text of a value without writing it or naming objects."""
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
