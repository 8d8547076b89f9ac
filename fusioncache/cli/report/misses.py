"""The misses of a run: for each template, which earlier one was nearest, and what kept them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusioncache.cli.report.contents import ReportTemplate
from fusioncache.observe.explain.difference import MissReason, explain_miss


@dataclass(frozen=True, slots=True)
class Miss:
    """A template that was new.

    Attributes:
        template: the template.
        nearest: the template that differs least, of those that were known by then; None if there was none.
        reason: in what they differ, this one being A.
    """

    template: ReportTemplate
    nearest: ReportTemplate | None
    reason: MissReason

    @property
    def changes(self) -> int:
        """How many things keep the two apart; 0 if there is nothing to compare with."""
        return len(self.reason.difference.changes)


def find_misses(templates: Sequence[ReportTemplate]) -> tuple[Miss, ...]:
    """Returns one for each template. Those that differ in the fewest things come first: they might be shared."""
    known = sorted(
        templates, key=lambda template: (not template.regions, *(region.number for region in template.regions[:1]))
    )
    texts = [template.parts for template in known]
    found = []
    for number, template in enumerate(known):
        reason = explain_miss(texts[number], texts[:number])
        found.append(Miss(template, None if reason.nearest is None else known[reason.nearest], reason))
    return tuple(sorted(found, key=lambda miss: (not miss.changes, miss.changes)))
