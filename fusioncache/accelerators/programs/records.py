"""What a describer learns while it writes a text, so that another one that knows as much need not write it again.

A text is the same in two descriptions if it was made of the same objects, and if what was described before it does not
show in it. The first is checked in ``fingerprint.py``, the second here: nothing in the text has a name by which an
object that was described before is called, and its classes are called the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType
from typing import Any

from fusioncache.accelerators.programs.literals import write_class_name
from fusioncache.accelerators.programs.memory import Memory

_TABLES = ("codes", "loose_globals", "held", "unknown", "handlers")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Record:
    """What was learned while something was written. The tables are those of ``Memory``.

    Attributes:
        met: the values that were written.
        identities: of these.
        classes: those that were named, none of which shares its name with another one, in this order: by its identity
            each, and its name.
        names: the names that last and were given, in this order.
        first: how many such names there were before, if any was given.
        codes: of the memory.
        loose_globals: of the memory.
        held: of the memory.
        unknown: of the memory.
        values: how many values were written.
    """

    met: tuple[object, ...]
    identities: frozenset[int]
    classes: Mapping[int, tuple[type, str]]
    names: Mapping[int, str]
    first: int
    codes: Mapping[int, CodeType]
    loose_globals: Mapping[tuple[int, str], object]
    held: Mapping[int, object]
    unknown: Mapping[tuple[str, str], str]
    values: int

    def teach(self, memory: Memory) -> bool:
        """Teaches another describer what was learned, if its texts would be the same; returns whether they would."""
        if self.names and memory.lasting != self.first:
            return False
        if not memory.names.keys().isdisjoint(self.identities):
            return False
        new = self._find_new(memory)
        if new is None:
            return False
        for cls, label in new:
            memory.note_class(cls, label, label)
        if memory.named is not None:
            memory.named.update(self.classes)
        memory.names.update(self.names)
        memory.lessons.append(self)
        memory.lasting += len(self.names)
        memory.values += self.values
        if memory.met is not None:
            memory.met += self.met
        return True

    def _find_new(self, memory: Memory) -> Sequence[tuple[type, str]] | None:
        """Returns the classes that were not met; None if one of all of them is called otherwise, or as another one."""
        # Where no two classes share a name, equal names are all. A name is found by an identity, which is the class's.
        if not memory.shared and self.classes.items() <= memory.class_names.items():
            return ()
        new = []
        for identity, (cls, label) in self.classes.items():
            known = memory.class_names.get(identity)
            if memory.taken.get(label, 0) != (known is not None) or (known is not None and known[1] != label):
                return None
            if known is None:
                new.append((cls, label))
        return new


@dataclass(slots=True)
class Recording:
    """What is learned in the body of ``recording``.

    Attributes:
        record: what was; None if it shows in the texts what was described before.
    """

    record: Record | None = field(default=None)


@contextmanager
def recording(memory: Memory) -> Iterator[Recording]:
    """Records what is learned in its body. A recording may be in the body of another one."""
    result = Recording()
    outer = {name: getattr(memory, name) for name in _TABLES}
    met, named, lessons = memory.met, memory.named, memory.lessons
    before = (len(memory.names), len(memory.storages), memory.lasting, memory.values)
    for name in _TABLES:
        setattr(memory, name, {})
    memory.met, memory.named, memory.lessons = [], {}, []
    try:
        yield result
        memory.absorb()
        result.record = _make_record(memory, *before)
    finally:
        memory.absorb()
        for name, table in outer.items():
            table.update(getattr(memory, name))
            setattr(memory, name, table)
        if met is not None:
            met += memory.met
        if named is not None:
            named.update(memory.named)
        memory.met, memory.named, memory.lessons = met, named, lessons


def _make_record(memory: Memory, names: int, storages: int, lasting: int, values: int) -> Record | None:
    given = dict(islice(memory.names.items(), names, None))
    met, classes = memory.met or [], dict(memory.named or {})
    identities = frozenset(map(id, met))
    is_alone = memory.names.keys().isdisjoint(identities - given.keys())
    # Tensors are told by their storages as well; who has a name with a number shares it.
    is_plain = all(label == write_class_name(cls) for cls, label in classes.values())
    is_plain = is_plain and len(memory.storages) == storages
    if not is_alone or not is_plain or len(given) != memory.lasting - lasting:
        return None
    tables: dict[str, Any] = {name: dict(getattr(memory, name)) for name in _TABLES if name != "handlers"}
    return Record(tuple(met), identities, classes, given, lasting, **tables, values=memory.values - values)
