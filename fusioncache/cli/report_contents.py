"""The contents of a report: the facts of one run, numbered so that each can be linked to."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from fusioncache.ir import TensorType
from fusioncache.ir.keys import GRAPH
from fusioncache.observe.record.observations import (
    ANY_SIZES,
    ChoiceRecord,
    PlacementRecord,
    RegionRecord,
    Run,
    find_whole_models,
)
from fusioncache.observe.record.reader import RecordReader
from fusioncache.observe.record.stats import TemplateStats
from fusioncache.template.text import read_inputs

GENERATOR = "fusioncache report"
"""A file that says so in its head is a report."""


@dataclass(frozen=True, slots=True)
class ReportRegion:
    """A region in the report.

    Attributes:
        number: its position among all regions of the run, from 0.
        record: what is recorded of it.
        template: the number of its template; None if it was bypassed.
    """

    number: int
    record: RegionRecord
    template: int | None


@dataclass(frozen=True, slots=True)
class ReportTemplate:
    """A template in the report.

    Attributes:
        number: its position among all templates, the most expensive first, from 1.
        stats: what is recorded of it.
        regions: the regions that have it, in their order.
        colour: counts the templates that several regions have, by their first regions, from 0; None if only one has it.
    """

    number: int
    stats: TemplateStats
    regions: tuple[ReportRegion, ...]
    colour: int | None

    @property
    def parts(self) -> dict[str, str]:
        """The ingredients of its key."""
        return dict(self.stats.ingredients)

    @property
    def is_general(self) -> bool:
        """Whether code for any sizes serves a region of it, rather than code for its own."""
        return any(region.record.plan == ANY_SIZES for region in self.regions)


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything that a report says.

    Attributes:
        run: which, with its counts and phases.
        templates: its templates, the most expensive first.
        regions: its regions, in the order of its traces.
        choices: what was chosen for its residual streams.
        placements: where the collectives of its traces are.
    """

    run: Run
    templates: tuple[ReportTemplate, ...]
    regions: tuple[ReportRegion, ...]
    choices: tuple[ChoiceRecord, ...]
    placements: tuple[PlacementRecord, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The models that were compiled or loaded, in their order."""
        return self.run.models or tuple(
            dict.fromkeys(region.record.model for region in self.regions if region.record.model)
        )

    @property
    def whole_models(self) -> tuple[str, ...]:
        """The same without their parts."""
        return find_whole_models(self.models)

    @property
    def environment(self) -> dict[str, tuple[str, ...]]:
        """What the templates were compiled for: each ingredient that says nothing of a graph, with its texts."""
        found: dict[str, dict[str, None]] = {"device": {}}
        for template in self.templates:
            found["device"] |= dict.fromkeys(_devices(template.parts.get("inputs", "")))
            for name, text in template.stats.ingredients:
                if name not in GRAPH:
                    found.setdefault(name, {})[text] = None
        return {name: tuple(texts) for name, texts in found.items() if texts}

    @property
    def met(self) -> tuple[ReportTemplate, ...]:
        """The templates in the order in which the run met them. Those without a region on record come last."""
        last = len(self.regions)
        return tuple(sorted(self.templates, key=lambda each: min((one.number for one in each.regions), default=last)))

    def template(self, number: int | None) -> ReportTemplate | None:
        """Returns the template with this number."""
        return None if number is None else self.templates[number - 1]


def read_contents(record: RecordReader, run: Run) -> Contents:
    """Reads what the record has of a run."""
    templates = record.add_ingredients(record.templates(run.id))
    numbers = {template.digest: number for number, template in enumerate(templates, 1)}
    regions = tuple(
        ReportRegion(number, region, numbers.get(region.digest) if region.digest else None)
        for number, region in enumerate(record.regions(run.id))
    )
    of: defaultdict[int | None, list[ReportRegion]] = defaultdict(list)
    for region in regions:
        of[region.template].append(region)
    # A region may have had no room in the record, and its template is there all the same: that one comes last.
    order = [*of, *(number for number in numbers.values() if number not in of)]
    repeated = [number for number in order if number is not None and templates[number - 1].regions > 1]
    listed = tuple(
        ReportTemplate(number, template, tuple(of[number]), repeated.index(number) if number in repeated else None)
        for number, template in enumerate(templates, 1)
    )
    return Contents(run, listed, regions, record.records(run.id, ChoiceRecord), record.records(run.id, PlacementRecord))


def _devices(inputs: str) -> list[str]:
    """Returns the device types of the tensors among the inputs; none if the ingredient cannot be read."""
    try:
        return [type_.device for type_ in read_inputs(inputs) if isinstance(type_, TensorType)]
    except ValueError:
        return []
