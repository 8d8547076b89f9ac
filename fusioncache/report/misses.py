"""The misses of a run: for each template, which earlier one was nearest, and what kept them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusioncache.explain.miss import MissReason, explain_miss
from fusioncache.report.contents import Entry


@dataclass(frozen=True, slots=True)
class Miss:
    """A template that was new.

    Attributes:
        entry: the template.
        nearest: the template that differs least, of those that were known by then; None if there was none.
        reason: in what they differ, this one being A.
    """

    entry: Entry
    nearest: Entry | None
    reason: MissReason

    @property
    def changes(self) -> int:
        """How many things keep the two apart; 0 if there is nothing to compare with."""
        return len(self.reason.difference.changes)


def find_misses(entries: Sequence[Entry]) -> tuple[Miss, ...]:
    """Returns one for each template. Those that differ in the fewest things come first: they might be shared."""
    known = sorted(entries, key=lambda entry: (not entry.places, *(place.number for place in entry.places[:1])))
    texts = [entry.parts for entry in known]
    found = []
    for number, entry in enumerate(known):
        reason = explain_miss(texts[number], texts[:number])
        found.append(Miss(entry, None if reason.nearest is None else known[reason.nearest], reason))
    return tuple(sorted(found, key=lambda miss: (not miss.changes, miss.changes)))
