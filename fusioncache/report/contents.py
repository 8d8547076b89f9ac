"""What a report is about: the facts of one run, numbered so that each can be linked to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusioncache.ir import TensorType
from fusioncache.ir.ingredients import GRAPH
from fusioncache.record.observations import ChoiceRecord, RegionRecord
from fusioncache.record.reader import RecordReader
from fusioncache.record.runs import Run
from fusioncache.record.stats import TemplateStats
from fusioncache.template.text import read_inputs

GENERATOR = "fusioncache report"
"""A file that says so in its head is a report."""


@dataclass(frozen=True, slots=True)
class Place:
    """A region in the report.

    Attributes:
        number: its place among all regions of the run, from 0.
        region: what is recorded of it.
        template: the number of its template; None if it was bypassed.
    """

    number: int
    region: RegionRecord
    template: int | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A template in the report.

    Attributes:
        number: its place among all templates, the most expensive first, from 1.
        stats: what is recorded of it.
        places: the regions that have it, in their order.
        colour: counts the templates that several regions have, by their first regions, from 0; None if only one has it.
    """

    number: int
    stats: TemplateStats
    places: tuple[Place, ...]
    colour: int | None

    @property
    def parts(self) -> dict[str, str]:
        """The ingredients of its key."""
        return dict(self.stats.ingredients)


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything that a report says.

    Attributes:
        run: which, with its counts and phases.
        entries: its templates, the most expensive first.
        places: its regions, in the order of its traces.
        choices: what was chosen for its residual streams.
    """

    run: Run
    entries: tuple[Entry, ...]
    places: tuple[Place, ...]
    choices: tuple[ChoiceRecord, ...]

    @property
    def models(self) -> tuple[str, ...]:
        """The models that were compiled, in their order."""
        return tuple(dict.fromkeys(place.region.model for place in self.places if place.region.model))

    @property
    def environment(self) -> dict[str, tuple[str, ...]]:
        """What the templates were compiled for: each ingredient that says nothing of a graph, with its texts."""
        found: dict[str, dict[str, None]] = {"device": {}}
        for entry in self.entries:
            found["device"] |= dict.fromkeys(_devices(entry.parts.get("inputs", "")))
            for name, text in entry.stats.ingredients:
                if name not in GRAPH:
                    found.setdefault(name, {})[text] = None
        return {name: tuple(texts) for name, texts in found.items() if texts}

    def entry(self, number: int | None) -> Entry | None:
        """Returns the template with this number."""
        return None if number is None else self.entries[number - 1]


def contents(record: RecordReader, run: Run) -> Contents:
    """Reads what the record has of a run."""
    templates = record.add_ingredients(record.templates(run.id))
    numbers = {template.digest: number for number, template in enumerate(templates, 1)}
    places = tuple(
        Place(number, region, numbers.get(region.digest) if region.digest else None)
        for number, region in enumerate(record.regions(run.id))
    )
    return Contents(run, _entries(templates, places), places, record.choices(run.id))


def _entries(templates: Sequence[TemplateStats], places: Iterable[Place]) -> tuple[Entry, ...]:
    of: defaultdict[int, list[Place]] = defaultdict(list)
    for place in places:
        if place.template is not None:
            of[place.template].append(place)
    colours = _colours(templates, of)
    return tuple(
        Entry(number, template, tuple(of[number]), colours.get(number)) for number, template in enumerate(templates, 1)
    )


def _colours(templates: Sequence[TemplateStats], of: Mapping[int, Sequence[Place]]) -> dict[int, int]:
    # A region may have had no room in the record, and its template is there all the same: that one comes last.
    order = [*of, *(number for number in range(1, len(templates) + 1) if number not in of)]
    repeated = [number for number in order if templates[number - 1].regions > 1]
    return {number: colour for colour, number in enumerate(repeated)}


def _devices(inputs: str) -> list[str]:
    """Returns the device types of the tensors among the inputs; none if the ingredient cannot be read."""
    try:
        return [type_.device for type_ in read_inputs(inputs) if isinstance(type_, TensorType)]
    except ValueError:
        return []
