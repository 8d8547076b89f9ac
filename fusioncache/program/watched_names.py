"""Names that serve one key after the other, and what was made of them, as long as nothing has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from fusioncache.program.code_places import CodePlaces
from fusioncache.program.foreign import Foreign
from fusioncache.program.records import Record
from fusioncache.program.snapshot import Snapshot
from fusioncache.program.watched_tables import WatchedTables


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """Lines that were made of the names of values in tables.

    Attributes:
        table: that they are about.
        tables: all that the lines were made of, as they were then.
        lines: what was made.
    """

    table: Mapping[Any, Any]
    tables: WatchedTables
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WatchedNames:
    """Names of one process, and what they were made of at one moment.

    Attributes:
        names: of values, but for those that the describer took part in: whoever takes the others over has to meet their
            classes, too.
        places: where code stands.
        snapshot: of all that has these names, which it keeps alive.
        summaries: what was made of these names, and of no others, by what it is about.
    """

    names: Mapping[int | FunctionType, str]
    places: CodePlaces
    snapshot: Snapshot
    summaries: Mapping[str, Summary]


@dataclass(slots=True)
class Noted:
    """What was named meanwhile.

    Attributes:
        held: the values, and the dicts in which some of them keep what they consist of.
        foreign: what somebody else wrote, by its place.
        record: what the describer learned; None if the names depend on what was named or described before.
    """

    held: tuple[Any, ...] = ()
    foreign: Foreign = field(default_factory=dict)
    record: Record | None = None
