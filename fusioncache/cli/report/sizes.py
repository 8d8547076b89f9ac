"""Templates of a run that are the same but for sizes and numbers: what varies, and which code serves each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusioncache.cli.report.contents import ReportTemplate
from fusioncache.observe.explain.difference import find_relatives
from fusioncache.observe.record.observations import ANY_SIZES


@dataclass(frozen=True, slots=True)
class SizedTemplate:
    """One of several templates that differ only in sizes and numbers.

    Attributes:
        template: it.
        values: its own, one for each that varies.
        is_general: whether code for any sizes serves a region of it, rather than code for its own.
    """

    template: ReportTemplate
    values: tuple[str, ...]
    is_general: bool


@dataclass(frozen=True, slots=True)
class SizeFamily:
    """Templates that differ only in sizes and numbers.

    Attributes:
        varying: what differs, in words.
        members: these, in the order in which the run met them.
    """

    varying: tuple[str, ...]
    members: tuple[SizedTemplate, ...]


def find_families(templates: Sequence[ReportTemplate]) -> tuple[SizeFamily, ...]:
    """Returns the families with several templates, the largest first."""
    ordered = sorted(templates, key=lambda template: [region.number for region in template.regions[:1]])
    return tuple(sorted(_read_families(ordered), key=lambda family: -len(family.members)))


def _read_families(templates: Sequence[ReportTemplate]) -> Iterator[SizeFamily]:
    for relatives in find_relatives([template.parts for template in templates]):
        rows = list(zip(*(varying.values for varying in relatives.varying), strict=True))
        members = (
            SizedTemplate(templates[member], tuple(map(str, row)), _is_general(templates[member]))
            for member, row in zip(relatives.members, rows, strict=True)
        )
        yield SizeFamily(tuple(varying.name for varying in relatives.varying), tuple(members))


def _is_general(template: ReportTemplate) -> bool:
    return any(region.record.plan == ANY_SIZES for region in template.regions)
