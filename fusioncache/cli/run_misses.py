"""The misses of a run: what was compiled in it, and in what each template differs from the nearest one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fusioncache.cli.listings import SourceLocation, find_locations, find_reasons_not_kept, format_locations
from fusioncache.cli.output import ID_DIGITS, count_columns, print_json, say, shorten_id, wrap
from fusioncache.cli.run_counts import list_programs
from fusioncache.humanize import escape_controls, format_count, format_duration
from fusioncache.observe.explain.changes import KeyChange
from fusioncache.observe.explain.difference import MissReason, explain_miss
from fusioncache.observe.record.observations import RegionRecord, Run
from fusioncache.observe.record.reader import RecordReader
from fusioncache.observe.record.stats import TemplateStats

AGAIN = "This template is not new: an earlier run had it, but its executables were not in the store."


@dataclass(frozen=True, slots=True)
class TemplateMiss:
    """A template for which a run compiled.

    Attributes:
        template: the template.
        nearest: the template that differs least, of those that were known by then; None if there was none.
        reason: in what they differ, this one being A; None if an earlier run had this one too.
    """

    template: TemplateStats
    nearest: TemplateStats | None = None
    reason: MissReason | None = None

    @property
    def sentence(self) -> str:
        """The differences between the template and its nearest."""
        return self.reason.sentence(self.nearest.name if self.nearest else "") if self.reason else AGAIN

    @property
    def changes(self) -> Sequence[KeyChange]:
        """In what the template differs from its nearest, one by one."""
        return self.reason.difference.changes if self.reason else ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the miss as JSON has it."""
        template = self.template
        counts = {"compiles": template.compiles, "compile_seconds": template.compile_seconds}
        why = {"sentence": self.sentence, "again": self.reason is None}
        nearest = {"nearest": self.nearest and self.nearest.digest, "changes": self.changes}
        return {"digest": template.digest, "name": template.name, **counts, **why, **nearest}


def explain_templates(
    templates: Sequence[TemplateStats], before: Sequence[TemplateStats] = ()
) -> tuple[TemplateMiss, ...]:
    """Returns the misses of a run, each compared with what was known by then.

    Those that differ in the fewest things come first, because they might be shared.

    Args:
        templates: of the run, in the order in which it met them.
        before: those of earlier runs.
    """
    digests = {template.digest for template in before}
    known, texts, misses = [*before], [dict(template.ingredients) for template in before], []
    for template in templates:
        if template.digest in digests:
            misses.append(TemplateMiss(template))
            continue
        key = dict(template.ingredients)
        reason = explain_miss(key, texts)
        misses.append(TemplateMiss(template, None if reason.nearest is None else known[reason.nearest], reason))
        known.append(template)
        texts.append(key)
    return tuple(sorted(misses, key=lambda miss: (not miss.changes, len(miss.changes))))


def print_misses(record: RecordReader, run: Run, directory: Path | None, *, as_json: bool) -> None:
    """Prints the misses of a run: a paragraph for each, and a line for what was loaded."""
    regions = defaultdict[str | None, list[RegionRecord]](list)
    for region in record.regions(run.id):
        regions[region.digest].append(region)
    # In the order in which the run met them. Those without a region on record come last.
    order = {digest: number for number, digest in enumerate(regions)}
    templates = record.add_ingredients(record.templates(run.id))
    own = sorted(templates, key=lambda template: order.get(template.digest, len(order)))
    explained = explain_templates(own, record.add_ingredients(record.before(run.id)))
    misses = [miss for miss in explained if miss.template.compiles]
    loaded = [template.digest for template in own if template.loads and not template.compiles]
    others = [template.digest for template in own if not template.loads and not template.compiles]
    notes = find_reasons_not_kept([miss.template for miss in misses], directory)
    places = [find_locations(regions[miss.template.digest]) for miss in misses]
    found = list(zip(misses, places, notes, strict=True))
    if as_json:
        stats = run.stats
        programs = {"loaded": stats.programs_loaded, "made": stats.programs_made, "refused": stats.programs_refused}
        data = [{**miss.to_dict(), "places": where, "not_kept": reasons} for miss, where, reasons in found]
        print_json({"run": run.id, "misses": data, "loaded": loaded, "others": others, "programs": programs})
        return
    summary = [wrap(_write_summary(run, len(misses), len(loaded), len(others)), count_columns())] if own else []
    if traced := "; ".join(list_programs(run)):
        summary.append(wrap(f"programs: {escape_controls(traced)}", count_columns()))
    if not own:
        say(f"Run {shorten_id(run.id)} has no templates: 'fusioncache stats' says what was bypassed and why.")
    if paragraphs := [*(_write_paragraph(*each) for each in found), *(["\n".join(summary)] if summary else [])]:
        click.echo("\n\n".join(paragraphs))


def _write_paragraph(miss: TemplateMiss, places: Sequence[SourceLocation], reasons: Mapping[str, int]) -> str:
    template = miss.template
    took = f"{format_count(template.compiles, 'compile', 'compiles')}, {format_duration(template.compile_seconds)}"
    lines = [f"{template.digest[:ID_DIGITS]}  {template.name}  ({took})", miss.sentence, *format_locations(places)]
    lines += [f"not stored: {reason}" for reason in sorted(reasons)]
    width = count_columns()
    return "\n  ".join(wrap(escape_controls(line), width and width - 2).replace("\n", "\n  ") for line in lines)


def _write_summary(run: Run, misses: int, loaded: int, others: int) -> str:
    parts = [f"{misses} of {format_count(misses + loaded + others, 'template', 'templates')} compiled"]
    parts += [f"{loaded} loaded from the store"] if loaded else []
    parts += [f"{others} not called, or with the code of another template"] if others else []
    return f"{', '.join(parts)} in run {run.id[:ID_DIGITS]} ({escape_controls(run.command)})"
