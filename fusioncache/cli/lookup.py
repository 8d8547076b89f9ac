"""From what a person typed to the one run or template that is meant, and where in the model it comes from."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click

from fusioncache.cli.definitions import shorten_file
from fusioncache.cli.storage import is_expected
from fusioncache.cli.terminal import ID_DIGITS
from fusioncache.humanize import escape_controls, format_count
from fusioncache.observe.explain.difference import Varying, find_relatives
from fusioncache.observe.record.observations import Line, RegionRecord
from fusioncache.observe.record.reader import RecordReader, has_record
from fusioncache.observe.record.runs import Run
from fusioncache.observe.record.schema import RecordError
from fusioncache.observe.record.stats import TemplateCounts, TemplateStats
from fusioncache.process.secrets import hide_line

_MOST_NAMED = 10
_MOST_RELATIVES = 256
"""How many templates with the same telling ops are looked into."""


LAST = "last"
"""What names the newest run."""


def pick_run(record: RecordReader, wanted: str | None) -> Run:
    """Returns the run whose id starts with ``wanted``, or else whose name has it; without one, the newest.

    Raises:
        click.ClickException: if there is no such run, or several.
    """
    runs = record.runs()
    if not runs:
        raise click.ClickException(f"{record.path} has no runs: run a model with fusioncache first")
    if wanted is None or wanted == LAST:
        return runs[0]
    starting = [run for run in runs if run.id.startswith(wanted)]
    found = starting or [run for run in runs if wanted in run.name]
    if not found:
        raise click.ClickException(
            f"no run in {record.path} has an id that starts with {wanted!r}, or a name with that in it: see "
            "'fusioncache stats --runs'"
        )
    if len(found) > 1:
        raise make_ambiguity_error(
            wanted, "runs", [f"{run.id[:ID_DIGITS]}  {escape_controls(run.name)}" for run in found]
        )
    return found[0]


def find_record(run: str | None) -> RecordReader | None:
    """Returns the record; None if no run is on record here but there is a store, as after a pull.

    Args:
        run: what names the run that is asked for, if one is named.

    Raises:
        RecordError: if there is neither, or the record cannot be read, or a run was named.
    """
    try:
        record = RecordReader()
    except RecordError:
        if run is not None or has_record() or not is_expected(None):
            raise
        return None
    return None if run is None and is_expected(None) and not record.runs() else record


def add_ingredients(record: RecordReader, template: TemplateCounts) -> TemplateStats:
    """Returns a template with what its key is made of.

    Raises:
        click.ClickException: if the record has forgotten it meanwhile.
    """
    for found in record.add_ingredients((template,)):
        return found
    raise click.ClickException(f"the record has just forgotten {template.name}: 'fusioncache ls' lists what it has")


def find_regions(record: RecordReader, template: TemplateCounts) -> Sequence[RegionRecord]:
    """Returns the regions that have a template, of the newest run that had it."""
    for run in record.runs():
        found = record.regions(run.id, template.digest)
        if found:
            return found
    return ()


def make_ambiguity_error(prefix: str, things: str, found: Sequence[str]) -> click.ClickException:
    """Returns what to raise where several things are meant by what was typed."""
    named = list(found[:_MOST_NAMED])
    if len(found) > len(named):
        named.append(f"and {len(found) - len(named)} more")
    lines = "".join(f"\n  {one}" for one in named)
    return click.ClickException(f"{prefix!r} stands for {len(found)} {things}: give more characters of one.{lines}")


_MOST = 3


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A location in the source of a model.

    Attributes:
        where: a module, and forward or backward.
        line: of the source, as far as that is known.
    """

    where: str
    line: Line | None

    def __str__(self) -> str:
        return f"{self.where}: {_source(self.line)}" if self.line else self.where

    def data(self) -> dict[str, Any]:
        """Returns the location as JSON."""
        line = self.line
        return {"place": self.where, "file": line and line.file, "line": line and line.number}


def find_locations(regions: Iterable[RegionRecord]) -> tuple[SourceLocation, ...]:
    """Returns the locations that regions come from, each once."""
    locations: dict[SourceLocation, None] = {}
    for region in regions:
        source = region.source
        line = next((line for line in source.lines if not line.library), next(iter(source.lines), None))
        locations[SourceLocation(f"{source.module or 'the model'}, {region.trace}", line)] = None
    return tuple(locations)


def format_locations(locations: Sequence[SourceLocation]) -> list[str]:
    """Returns the first few locations, a line each, and how many more there are."""
    lines = [str(location) for location in locations[:_MOST]]
    more = format_count(len(locations) - _MOST, "more place", "more places")
    return [*lines, f"and {more}"] if len(locations) > _MOST else lines


def _source(line: Line) -> str:
    """Returns a line of source: where it is, and what it says if it is still there."""
    text = hide_line(linecache.getline(line.file, line.number).strip())
    return f"{format_line(line)}  {text}" if text else format_line(line)


def format_line(line: Line) -> str:
    """Returns where a line is. The path of an installed package begins with the package's name."""
    return f"{shorten_file(Path(line.file))}:{line.number}"


def find_varying(record: RecordReader, template: TemplateStats) -> tuple[Varying, ...]:
    """Returns what varies between a template and those of the record that are the same but for sizes and numbers."""
    named = [each for each in record.find(template.name.rpartition("_")[0]) if each.digest != template.digest]
    others = record.add_ingredients(tuple(islice(named, _MOST_RELATIVES)))
    found = find_relatives([dict(each.ingredients) for each in (template, *others)])
    return next((relatives.varying for relatives in found if 0 in relatives.members), ())
