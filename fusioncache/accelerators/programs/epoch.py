"""What a process knows of Thunder's functions: it is described once, and again when a table holds another object.

Thunder's functions, and those of torch that it refers to, are taken as they were when they were first described. To
change one in place, such as its ``__code__``, is not noticed. To put another one in its place, in a module, in a class
or in a table, is. Classes and functions of others that Thunder's tables hold are compared like the classes of a model.

All compiled functions of a process use the same descriptions, as Thunder is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fusioncache.accelerators.programs.definitions import Definitions, KnownNames
from fusioncache.accelerators.programs.fingerprint import Fingerprint
from fusioncache.accelerators.programs.foreign import Foreign
from fusioncache.accelerators.programs.function_map import list_names, list_others, list_tables, write_thunder
from fusioncache.accelerators.programs.introspection import are_same
from fusioncache.accelerators.programs.known_classes import KnownClass, KnownClasses, take_fingerprint
from fusioncache.accelerators.programs.records import Record
from fusioncache.process.collector import without_collector

_MOST = 8
"""For how many lists of modules a function map is remembered."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KnownMap:
    """A function map, and what it was made of.

    Attributes:
        text: all that is Thunder's.
        foreign: what others wrote, as ``Definitions.foreign`` has it.
        record: what the describer learned.
        names: those that were known before.
        bystanders: as ``Definitions`` had them.
        fingerprints: of Thunder's tables, of what was named, and of what was described.
        classes: those of which the text has the digests.
    """

    text: str
    foreign: Foreign
    record: Record
    names: KnownNames
    bystanders: tuple[Any, ...]
    fingerprints: tuple[Fingerprint, ...]
    classes: Mapping[int, KnownClass]

    def is_told_by(self, definitions: Definitions, classes: KnownClasses) -> bool:
        """Returns whether it would be written again as it is. The describer then learned what it would have."""
        return (
            definitions.earlier is self.names
            and are_same(definitions.bystanders, self.bystanders)
            and all(each.holds() for each in self.fingerprints)
            and classes.are_unchanged(self.classes)
            and definitions.describer.learn(self.record)
        )


@dataclass(slots=True, eq=False, repr=False)
class MapWriter:
    """Writes the function map for one key.

    Attributes:
        known: it, as it was written for an earlier key; None if that is not known.
        classes: those of the key.
        is_learning: whether it is remembered for a later key.
        found: it, if it is.
    """

    known: KnownMap | None
    classes: KnownClasses
    is_learning: bool
    found: KnownMap | None = None

    def write(self, definitions: Definitions, executors: Iterable[Any]) -> str:
        """Returns what ``write_thunder`` does."""
        if self.known is not None and self.known.is_told_by(definitions, self.classes):
            self.found = self.known
            definitions.meet(self.known.foreign)
            return self.known.text
        names, modules = definitions.earlier, list_names(executors)
        if not self.is_learning or names is None:
            return write_thunder(definitions, executors)
        tables = Fingerprint(tables=list_tables(modules), read=lambda: list_others(modules))
        with definitions.noting() as noted:
            text = write_thunder(definitions, executors)
        definitions.describer.list_classes()  # which looks at those that were met
        record = noted.record
        classes = self.classes.list_reached(record) if record is not None else None
        described = take_fingerprint(record) if record is not None else None
        if record is not None and classes is not None and described is not None:
            fingerprints = tables, noted.fingerprint, described
            bystanders = definitions.bystanders
            self.found = KnownMap(text, noted.foreign, record, names, bystanders, fingerprints, classes)
        return text


@dataclass(slots=True, eq=False)
class Epoch:
    """What is known of Thunder's functions.

    Attributes:
        names: of Thunder's functions; None if they are not known.
        maps: the function map for each list of modules, as executors bring modules of their own.
        made: how many keys were made.
        compiled: how many modules were compiled, which have a key each.
    """

    names: KnownNames | None = None
    maps: dict[tuple[str, ...], KnownMap] = field(default_factory=dict)
    made: int = 0
    compiled: int = 0

    def find_map(self, executors: Iterable[object]) -> KnownMap | None:
        """Returns the function map for these executors; None if it is not known."""
        return self.maps.get(tuple(list_names(executors)))

    def learn_map(self, executors: Iterable[object], found: KnownMap | None) -> None:
        """Remembers the function map of a key for these executors, in place of the one before."""
        modules = tuple(list_names(executors))
        self.maps.pop(modules, None)
        if found is not None:
            self.maps[modules] = found
        for each in list(self.maps)[:-_MOST]:
            self.maps.pop(each, None)

    def learn_names(self, definitions: Definitions) -> None:
        """Remembers the names of a key, so that they serve the next one."""
        with without_collector():
            self.names = definitions.learn()

    def expects_more(self) -> bool:
        """Returns whether another key is to come. A process that loads one program makes one key."""
        return self.made > 1 or self.compiled > 1


@cache
def epoch_of_process() -> Epoch:
    """Returns what is known in this process, the same each time."""
    return Epoch()
