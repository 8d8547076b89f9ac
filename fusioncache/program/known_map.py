"""The function map of one key, as it was written for the one before, while nothing changed of what it was made of.

It was made of Thunder's tables, of the names of what is in them, and of descriptions of what somebody else put there.
The tables and the names are compared here, and what was looked at for the descriptions in ``known_parts.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fusioncache.program.definitions import Definitions
from fusioncache.program.foreign import Foreign
from fusioncache.program.function_map import list_names, watch_thunder, write_thunder
from fusioncache.program.records import Record
from fusioncache.program.snapshot import Snapshot, are_same
from fusioncache.program.watched_tables import WatchedTables


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KnownMap:
    """What is known of a function map.

    Attributes:
        text: of all that is Thunder's.
        foreign: what was written by somebody else, as ``Definitions.foreign`` has it.
        record: what the describer learned.
        names: that were taken over for it.
        own: what was named for it beside these, which were asked before.
        bystanders: as ``Definitions`` had them.
        modules: that it is about, which depend on the executors.
        tables: Thunder's.
    """

    text: str
    foreign: Foreign
    record: Record
    names: Snapshot
    own: Snapshot
    bystanders: tuple[Any, ...]
    modules: tuple[str, ...]
    tables: WatchedTables

    def is_told_by(self, definitions: Definitions) -> bool:
        """Tells whether it would be written so, but for descriptions; then the describer learned what it had."""
        names = definitions.earlier
        if names is None or names.snapshot is not self.names:
            return False
        is_same = are_same(definitions.bystanders, self.bystanders) and self.own.holds() and self.tables.hold()
        return is_same and definitions.describer.learn(self.record)


@dataclass(slots=True, eq=False, repr=False)
class MapWriter:
    """Writes the function map for one key.

    Attributes:
        known: it, as it was written for an earlier key; None if that is not known.
        is_learning: whether it is to be known for a later one.
        found: it, if it is.
    """

    known: KnownMap | None = None
    is_learning: bool = False
    found: KnownMap | None = None

    def write(self, definitions: Definitions, executors: Iterable[Any]) -> str:
        """Returns what ``write_thunder`` does."""
        given, known = tuple(executors), self.known
        modules = tuple(list_names(given))
        if known is not None and known.modules == modules and known.is_told_by(definitions):
            self.found = known
            definitions.meet(known.foreign)
            return known.text
        names = definitions.earlier
        if not self.is_learning or names is None:
            return write_thunder(definitions, given)
        tables = watch_thunder(given)
        with definitions.noting() as noted:
            text = write_thunder(definitions, given)
        if noted.record is not None:
            own, bystanders = Snapshot(noted.held, names.snapshot), definitions.bystanders
            self.found = KnownMap(text, noted.foreign, noted.record, names.snapshot, own, bystanders, modules, tables)
        return text
