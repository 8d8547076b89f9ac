"""What a describer knows: names of objects, digests of classes, and which code and which objects were described.

Everything is found by identity, never by a hash or an equality that may be anybody's code, and everything that is named
here is kept alive, so that no identity is given away again.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from fusioncache.accelerators.programs.literals import write_class_name


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


class Lesson(Protocol):
    """What one describer learned and another one is taught. The tables are those of ``Memory``."""

    @property
    def codes(self) -> Mapping[int, types.CodeType]:
        """Each code object that was described."""

    @property
    def loose_globals(self) -> Mapping[tuple[int, str], object]:
        """The namespaces that were looked into."""

    @property
    def held(self) -> Mapping[int, object]:
        """Each object that was described."""

    @property
    def unknown(self) -> Mapping[tuple[str, str], str]:
        """Why attributes have no value."""


@dataclass(slots=True)
class Memory:
    """The tables of a describer.

    Attributes:
        names: the names that last, by the object's identity.
        storages: the name of the first tensor in each storage, and the storage, by its address.
        held: each object that was described, by its identity.
        met: each value that was written and is more than a literal, as often as it was; None if nobody wants to know.
        named: the classes whose names somebody wanted, and these, if somebody wants to know.
        codes: each code object that was described.
        loose_globals: the namespaces of functions that are no module's, by identity and the names that were looked up.
        code_digests: the hash of each code object that was looked at.
        class_names: the name of each class that was met.
        contents: what each class is, for those that were looked at.
        pending: the classes that were met and not looked at.
        unknown: why an attribute of a class, by the class's name and its own, has no value.
        handlers: what writes the instances of each class that was met.
        path_counts: how many objects have a path's name.
        values: how many values were written.
        lasting: how many names without a path last.
        taken: how many classes have each name.
        shared: how often a class came by a name that another one had.
        lessons: what was taught and is not in the tables yet: ``absorb`` puts it there.
    """

    names: dict[int, str] = field(default_factory=dict)
    storages: dict[int, tuple[str, object]] = field(default_factory=dict)
    held: dict[int, object] = field(default_factory=dict)
    met: list[object] | None = None
    named: dict[int, tuple[type, str]] | None = None
    codes: dict[int, types.CodeType] = field(default_factory=dict)
    loose_globals: dict[tuple[int, str], object] = field(default_factory=dict)
    code_digests: dict[int, tuple[types.CodeType, str]] = field(default_factory=dict)
    class_names: dict[int, tuple[type, str]] = field(default_factory=dict)
    contents: dict[int, ClassContent] = field(default_factory=dict)
    pending: list[type] = field(default_factory=list)
    unknown: dict[tuple[str, str], str] = field(default_factory=dict)
    handlers: dict[int, Any] = field(default_factory=dict)
    path_counts: dict[str, int] = field(default_factory=dict)
    values: int = 0
    lasting: int = 0
    taken: dict[str, int] = field(default_factory=dict)
    shared: int = 0
    lessons: list[Lesson] = field(default_factory=list)

    def absorb(self) -> None:
        """Puts what was taught into the tables. Next to nobody asks these, so that it waits until somebody does."""
        while self.lessons:
            lesson = self.lessons.pop(0)
            self.codes.update(lesson.codes)
            self.loose_globals.update(lesson.loose_globals)
            self.held.update(lesson.held)
            self.unknown.update(lesson.unknown)

    def copy(self) -> Memory:
        """Returns a memory that knows what this one knows, and learns for itself."""
        tables = {each.name: getattr(self, each.name) for each in fields(self)}
        return Memory(**{name: copy(table) for name, table in tables.items()})

    def name_class(self, cls: type) -> str:
        """Returns the name of a class, with a number if another class has the same one."""
        known = self.class_names.get(id(cls))
        if known is None:
            name = write_class_name(cls)
            count = self.taken.get(name, 0) + 1
            known = cls, name if count == 1 else f"{name}({count})"
            self.note_class(cls, name, known[1])
        if self.named is not None:
            self.named[id(cls)] = known
        return known[1]

    def note_class(self, cls: type, name: str, label: str) -> None:
        """Notes what a class is called, and that it is to be looked at."""
        count = self.taken[name] = self.taken.get(name, 0) + 1
        self.shared += count > 1
        self.class_names[id(cls)] = cls, label
        self.pending.append(cls)
