"""Where in the user's model a template comes from."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.humanize import format_count
from fusioncache.record.observations import Line, RegionRecord

_MOST = 3


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a model.

    Attributes:
        where: a module, and forward or backward.
        line: of the source, as far as that is known.
    """

    where: str
    line: Line | None

    def __str__(self) -> str:
        return f"{self.where}: {_source(self.line)}" if self.line else self.where

    def data(self) -> dict[str, Any]:
        """As JSON."""
        line = self.line
        return {"place": self.where, "file": line and line.file, "line": line and line.number}


def places_of(regions: Iterable[RegionRecord]) -> tuple[Place, ...]:
    """The places that regions come from, each once."""
    places: dict[Place, None] = {}
    for region in regions:
        source = region.source
        line = next((line for line in source.lines if not line.library), next(iter(source.lines), None))
        places[Place(f"{source.module or 'the model'}, {region.trace}", line)] = None
    return tuple(places)


def places_text(places: Sequence[Place]) -> list[str]:
    """The first few places, a line each, and how many more there are."""
    lines = [str(place) for place in places[:_MOST]]
    more = format_count(len(places) - _MOST, "more place", "more places")
    return [*lines, f"and {more}"] if len(places) > _MOST else lines


def _source(line: Line) -> str:
    """A line of source: where it is, and what it says if it is still there."""
    text = linecache.getline(line.file, line.number).strip()
    return f"{line}  {text}" if text else str(line)
