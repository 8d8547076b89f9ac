"""The misses of a run: what was compiled in it, and in what each template differs from the nearest one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.cli.executables import find_reasons_not_kept
from fusioncache.cli.json_output import print_json
from fusioncache.cli.lookup import find_locations, find_regions, format_locations
from fusioncache.cli.runs import list_programs
from fusioncache.cli.terminal import ID_DIGITS, count_columns, say, shorten_id, wrap
from fusioncache.humanize import escape_controls, format_count, format_duration
from fusioncache.observe.record.reader import RecordReader
from fusioncache.observe.record.runs import Run
from fusioncache.observe.record.stats import TemplateStats

if TYPE_CHECKING:
    from fusioncache.observe.explain.changes import Change
    from fusioncache.observe.explain.difference import MissReason

AGAIN = "This template is not new: an earlier run had it, but its executables were not in the store."


@dataclass(frozen=True, slots=True)
class Miss:
    """A template for which a run compiled.

    Attributes:
        template: the template.
        nearest: the template that differs least, of those that were known by then; None if there was none.
        reason: in what they differ, this one being A; None if an earlier run had this one too.
    """

    template: TemplateStats
    nearest: TemplateStats | None
    reason: MissReason | None

    @property
    def sentence(self) -> str:
        """The differences between the template and its nearest."""
        return self.reason.sentence(self.nearest.name if self.nearest else "") if self.reason else AGAIN

    @property
    def changes(self) -> Sequence[Change]:
        """In what the template differs from its nearest, one by one."""
        return self.reason.difference.changes if self.reason else ()


@dataclass(frozen=True, slots=True)
class Misses:
    """What a run compiled, and what it did not.

    Attributes:
        misses: those that differ in the fewest things come first, because they might be shared.
        loaded: templates that were loaded from the store, all that was needed of them.
        others: templates for which nothing was compiled or loaded: others had it, or they were not called.
    """

    misses: tuple[Miss, ...]
    loaded: tuple[TemplateStats, ...]
    others: tuple[TemplateStats, ...]


def find_misses(record: RecordReader, run: Run) -> Misses:
    """Returns a run's misses, each compared with what was known before: in earlier runs, and before it in its own."""
    before = record.add_ingredients(record.before(run.id))
    own = _sort_as_met(record, run)
    digests = {template.digest for template in before}
    known = [*before, *(template for template in own if template.digest not in digests)]
    misses = [_explain(template, template.digest in digests, known) for template in own if template.compiles]
    rest = [template for template in own if not template.compiles]
    return Misses(
        tuple(sorted(misses, key=_rank)),
        tuple(template for template in rest if template.loads),
        tuple(template for template in rest if not template.loads),
    )


def print_misses(record: RecordReader, run: Run, directory: Path | None, *, as_json: bool) -> None:
    """Prints the misses of a run: a paragraph for each, and a line for what was loaded."""
    found = find_misses(record, run)
    notes = find_reasons_not_kept([miss.template for miss in found.misses], directory)
    if as_json:
        misses = [_miss_data(record, miss, reasons) for miss, reasons in zip(found.misses, notes, strict=True)]
        loaded, others = ([template.digest for template in some] for some in (found.loaded, found.others))
        print_json({"run": run.id, "misses": misses, "loaded": loaded, "others": others, "programs": _count(run)})
        return
    programs = "; ".join(list_programs(run))
    of_programs = [wrap(f"programs: {escape_controls(programs)}", count_columns())] if programs else []
    paragraphs = [_write_paragraph(record, miss, reasons) for miss, reasons in zip(found.misses, notes, strict=True)]
    if found.misses or found.loaded or found.others:
        of_programs = ["\n".join([wrap(_write_summary(run, found), count_columns()), *of_programs])]
    else:
        say(f"Run {shorten_id(run.id)} has no templates: 'fusioncache stats' says what was bypassed and why.")
    if paragraphs or of_programs:
        click.echo("\n\n".join([*paragraphs, *of_programs]))


def _count(run: Run) -> dict[str, Any]:
    """Returns what became of a run's programs."""
    stats = run.stats
    return {"loaded": stats.programs_loaded, "made": stats.programs_made, "refused": dict(stats.programs_refused)}


def _sort_as_met(record: RecordReader, run: Run) -> Sequence[TemplateStats]:
    """Returns a run's templates in the order in which it met them. Those without a region on record come last."""
    first: dict[str | None, int] = {}
    for number, region in enumerate(record.regions(run.id)):
        first.setdefault(region.digest, number)
    templates = record.add_ingredients(record.templates(run.id))
    return sorted(templates, key=lambda template: first.get(template.digest, len(first) + run.stats.regions))


def _explain(template: TemplateStats, again: bool, known: Sequence[TemplateStats]) -> Miss:
    from fusioncache.observe.explain.difference import explain_miss

    if again:
        return Miss(template, None, None)
    before = known[: known.index(template)]
    reason = explain_miss(dict(template.ingredients), [dict(other.ingredients) for other in before])
    return Miss(template, None if reason.nearest is None else before[reason.nearest], reason)


def _rank(miss: Miss) -> tuple[bool, int]:
    return not miss.changes, len(miss.changes)


def _write_paragraph(record: RecordReader, miss: Miss, reasons: Mapping[str, int]) -> str:
    template = miss.template
    took = f"{format_count(template.compiles, 'compile', 'compiles')}, {format_duration(template.compile_seconds)}"
    lines = [f"{template.digest[:ID_DIGITS]}  {template.name}  ({took})", miss.sentence]
    lines += format_locations(find_locations(find_regions(record, template)))
    lines += [f"not stored: {reason}" for reason in sorted(reasons)]
    width = count_columns()
    return "\n  ".join(wrap(escape_controls(line), width and width - 2).replace("\n", "\n  ") for line in lines)


def _write_summary(run: Run, found: Misses) -> str:
    number = len(found.misses) + len(found.loaded) + len(found.others)
    parts = [f"{len(found.misses)} of {format_count(number, 'template', 'templates')} compiled"]
    parts += [f"{len(found.loaded)} loaded from the store"] if found.loaded else []
    parts += [f"{len(found.others)} not called, or with the code of another template"] if found.others else []
    return f"{', '.join(parts)} in run {run.id[:ID_DIGITS]} ({escape_controls(run.command)})"


def _miss_data(record: RecordReader, miss: Miss, reasons: Mapping[str, int]) -> dict[str, Any]:
    template = miss.template
    return {
        "digest": template.digest,
        "name": template.name,
        "compiles": template.compiles,
        "compile_seconds": template.compile_seconds,
        "sentence": miss.sentence,
        "again": miss.reason is None,
        "nearest": miss.nearest.digest if miss.nearest else None,
        "changes": [change.data() for change in miss.changes],
        "places": [location.data() for location in find_locations(find_regions(record, template))],
        "not_kept": dict(reasons),
    }
