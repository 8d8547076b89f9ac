"""The misses of a run: for each template, which earlier one was nearest, and what kept them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusioncache.explain.difference import Difference, compare
from fusioncache.explain.nearest import nearest
from fusioncache.report.contents import Entry


@dataclass(frozen=True, slots=True)
class Miss:
    """A template that was new.

    Attributes:
        entry: it.
        nearest: the template that differs least, of those that were known by then; None if there was none.
        difference: in what they differ, this one being A.
    """

    entry: Entry
    nearest: Entry | None
    difference: Difference | None

    @property
    def changes(self) -> int:
        """How many things keep the two apart; 0 if there is nothing to compare with."""
        return len(self.difference.changes) if self.difference else 0


def misses(entries: Sequence[Entry]) -> tuple[Miss, ...]:
    """One for each template. Those that differ in the fewest things come first, because they might be shared."""
    known = sorted(entries, key=lambda entry: (not entry.places, *(place.number for place in entry.places[:1])))
    parts = [entry.parts for entry in known]
    found = []
    for place, entry in enumerate(known):
        at = nearest(parts[place], parts[:place])
        if at is None:
            found.append(Miss(entry, None, None))
        else:
            found.append(Miss(entry, known[at], compare(parts[place], parts[at])))
    return tuple(sorted(found, key=lambda miss: (not miss.changes, miss.changes)))
