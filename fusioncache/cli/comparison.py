"""The commands explain and diff: why a run compiled, what changed between two runs, and how two things differ."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fusioncache.cli.console import (
    ANY_ID,
    ID_DIGITS,
    RUN_ID,
    Column,
    count_columns,
    directory_option,
    format_table,
    json_option,
    print_json,
    remove_controls,
    run_option,
    say,
    shorten_id,
    wrap,
)
from fusioncache.cli.overview import format_run_label, list_programs
from fusioncache.cli.show import SourceLocation, find_locations, find_reasons_not_stored, format_locations
from fusioncache.cli.things import (
    TRACES,
    Kind,
    NamedThing,
    StoredEntry,
    find_regions,
    list_sources,
    list_things,
    or_none,
    pick,
    pick_run,
)
from fusioncache.humanize import escape_controls, format_count, format_duration, format_seconds
from fusioncache.observe.explain.changes import KeyChange
from fusioncache.observe.explain.difference import (
    Difference,
    compare,
    explain_miss,
    find_nearest,
    list_lines,
    write_miss,
)
from fusioncache.observe.explain.program_difference import (
    ProgramDifference,
    compare_program_keys,
    compare_reads,
    find_source_line,
)
from fusioncache.observe.record.database import RecordReader
from fusioncache.observe.record.observations import RegionRecord, Run
from fusioncache.observe.record.stats import TemplateStats
from fusioncache.process.secrets import blur

AGAIN = "This template is not new: an earlier run had it, but its executables were not in the store."


@dataclass(frozen=True, slots=True)
class TemplateMiss:
    """A template for which a run compiled.

    Attributes:
        template: the template.
        nearest: the known template that differed least at the time; None if there was none.
        difference: the difference from the nearest, with this one as A; None if an earlier run had this one too.
    """

    template: TemplateStats
    nearest: TemplateStats | None = None
    difference: Difference | None = None

    @property
    def sentence(self) -> str:
        """A sentence about the differences from the nearest template, or about the earlier run that had this one."""
        if self.difference is None:
            return AGAIN
        return write_miss(self.nearest.name if self.nearest else None, self.difference)

    @property
    def changes(self) -> Sequence[KeyChange]:
        """The differences from the nearest template, one by one."""
        return self.difference.changes if self.difference else ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the miss as data for JSON."""
        template = self.template
        counts = {"compiles": template.compiles, "compile_seconds": template.compile_seconds}
        why = {"sentence": self.sentence, "again": self.difference is None}
        nearest = {"nearest": self.nearest and self.nearest.digest, "changes": self.changes}
        return {"digest": template.digest, "name": template.name, **counts, **why, **nearest}


def explain_templates(
    templates: Sequence[TemplateStats], before: Sequence[TemplateStats] = ()
) -> tuple[TemplateMiss, ...]:
    """Returns the misses of a run, each compared with the templates that were known before it.

    Misses with the fewest differences come first, because they might be shared. Those without any come last.

    Args:
        templates: the templates of the run, in the order in which it met them.
        before: the templates of earlier runs.
    """
    digests = {template.digest for template in before}
    known, texts, misses = [*before], [template.texts for template in before], []
    for template in templates:
        if template.digest in digests:
            misses.append(TemplateMiss(template))
            continue
        nearest, difference = explain_miss(template.texts, texts)
        misses.append(TemplateMiss(template, None if nearest is None else known[nearest], difference))
        known.append(template)
        texts.append(template.texts)
    return tuple(sorted(misses, key=lambda miss: (not miss.changes, len(miss.changes))))


def print_misses(record: RecordReader, run: Run, directory: Path | None, *, as_json: bool) -> None:
    """Prints a paragraph for each miss of a run, and a summary that counts the loaded templates."""
    regions = defaultdict[str | None, list[RegionRecord]](list)
    for region in record.regions(run.id):
        regions[region.digest].append(region)
    # In the order in which the run met them. Templates without a recorded region come last.
    order = {digest: number for number, digest in enumerate(regions)}
    templates = record.templates(run.id)
    own = sorted(templates, key=lambda template: order.get(template.digest, len(order)))
    explained = explain_templates(own, record.before(run.id))
    misses = [miss for miss in explained if miss.template.compiles]
    loaded = [template.digest for template in own if template.loads and not template.compiles]
    others = [template.digest for template in own if not template.loads and not template.compiles]
    notes = find_reasons_not_stored([miss.template for miss in misses], directory)
    places = [find_locations(regions[miss.template.digest]) for miss in misses]
    found = list(zip(misses, places, notes, strict=True))
    if as_json:
        stats = run.stats
        programs = {"loaded": stats.programs_loaded, "made": stats.programs_made, "refused": stats.programs_refused}
        data = [{**miss.to_dict(), "places": where, "not_stored": reasons} for miss, where, reasons in found]
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
    templates = format_count(misses + loaded + others, "template", "templates")
    parts = [f"{misses} compiled", *([f"{loaded} loaded"] if loaded else [])]
    parts += [f"{others} not called or run with another's code"] if others else []
    return f"run {run.id[:ID_DIGITS]} ({escape_controls(run.command)}), {templates}: {', '.join(parts)}"


_MOST = 20
"""How many differences are shown without ``--all``."""
_COLUMNS = tuple(Column(title, fold=True) for title in ("differs", "A", "B"))
_HANG = 8
"""The indent of continued lines of a trace or a key."""
_COUNTS = ("regions", "templates", "hits", "misses", "compiles", "loads", "programs_loaded", "programs_made")
_SECONDS = (
    *("compile_seconds", "load_seconds", "loaded_compile_seconds", "saved_seconds", "canonicalize_seconds"),
    "loaded_program_seconds",
)
_RUN_COLUMNS = (Column("count"), *(Column(title, number=True) for title in ("old", "new", "change")))
_TEMPLATE_COLUMNS = (
    Column("id", id=True),
    Column("name", cut=True),
    Column("what"),
    Column("compile seconds", format_seconds, number=True),
)


@click.command()
@click.argument("a", metavar="[A]", required=False, type=ANY_ID)
@click.argument("b", metavar="[B]", required=False, type=ANY_ID)
@click.option("--all", "everything", is_flag=True, help="Print all lines, and how the traces of programs differ.")
@run_option
@directory_option
@json_option
def explain(
    a: str | None, b: str | None, everything: bool, run_id: str | None, directory: Path | None, as_json: bool
) -> None:
    """Show why a run compiled, or how templates or programs differ.

    Without A, it lists the templates that the newest run compiled. For each, one sentence names the nearest template
    known before, and how it differs. A line at the end counts the templates that were loaded from the store.

    A and B are IDs or names of templates or executables from 'ls' and 'ls --store', or their starts. Without B, A is
    compared with the nearest of all others. A table lists the differences, without those that follow from others. --all
    adds all lines of both keys with numbered operations (ops): - marks a line of only A, + a line of only B.

    A and B may also be programs from 'ls --programs'. As A, a model's name means its newest program. Programs differ in
    lines of their keys, or in reads (outside values that were recorded in tracing).

    \b
    Examples:
        fusioncache explain
        fusioncache explain --run 5f3a
        fusioncache explain residual_tanh_3f9a2c71
        fusioncache explain 3f9a2c 77b1
        fusioncache explain Llama
        fusioncache explain 3f9a2c --json
    """
    if a is None:
        if everything:
            raise click.UsageError("--all is about one thing: give the ID of a template, executable or program.")
        record = RecordReader()
        print_misses(record, pick_run(record, run_id), directory, as_json=as_json)
        return
    if run_id is not None:
        raise click.UsageError("--run lists what a run compiled, and an ID names one template: give only one of them.")
    # A model's name means its newest program: the question is why a job has just derived that one.
    one = pick(a, directory, ("template", "program", "executable"), newest=True)
    compare_them = _compare_programs if one.kind == "program" else _compare_templates
    kinds: tuple[Kind, ...] = ("program",) if one.kind == "program" else ("template", "executable")
    other = _find_nearest(one, directory) if b is None else pick(b, directory, kinds)
    (title, data), (other_title, other_data) = _describe(one, directory), _describe(other, directory)
    sentence, found, table = compare_them(one, other, everything)
    if as_json:
        print_json({"a": data, "b": other_data, "sentence": sentence, **found})
    elif one.is_same(other):
        say(f"Both IDs name the same {one.kind}: {title}", err=False)
    else:
        lines = [sentence, *([f"  {found['line']}"] if found.get("line") else [])]
        say("\n".join([*lines, "", f"A  {title}", f"B  {other_title}"]), err=False)
        if table:
            click.echo(f"\n{table}")


@click.command()
@click.argument("old", type=RUN_ID, required=False)
@click.argument("new", type=RUN_ID, required=False)
@json_option
def diff(old: str | None, new: str | None, as_json: bool) -> None:
    """Show the differences between run OLD and run NEW.

    OLD and NEW are starts of run IDs or parts of run names from 'stats --runs'. NEW is the newest run by default.
    Without both, it compares the newest run with the one before. Templates are the same if their keys are, so a change
    of a version makes all of them new. 'fusioncache explain' compares programs, templates and executables.

    The seconds of loaded executables and programs are those of compiling or tracing them before they were stored. Saved
    seconds are an estimate, see 'stats --help'.

    \b
    Examples:
        fusioncache diff
        fusioncache diff 5f3a 91c0
        fusioncache diff old.py new.py
        fusioncache diff 5f3a --json
    """
    record = RecordReader()
    _diff_runs(record, *_pick_runs(record, old, new), as_json=as_json)


type Comparison = tuple[str, dict[str, Any], str]
"""The differences of two things: one sentence, all differences as data, and a table of them for people."""


def _describe(thing: NamedThing, directory: Path | None) -> tuple[str, dict[str, Any]]:
    """Returns a text about a thing, with its places and why it is not stored, and its data for JSON."""
    value, about = thing.value, ""
    places: Sequence[SourceLocation] = ()
    if isinstance(value, StoredEntry):
        about = " (an executable in the store)" if thing.kind == "executable" else f"  {value.inputs}".rstrip()
        reasons = [value.refused] if value.refused else []
    else:
        assert isinstance(value, TemplateStats)
        reasons = sorted(find_reasons_not_stored([value], directory)[0])
        places = find_locations(find_regions(RecordReader(), value))
    head = f"{thing.id if thing.kind == 'program' else shorten_id(thing.digest)}  {thing.name}{about}"
    lines = [head, *format_locations(places), *(f"not stored: {reason}" for reason in reasons)]
    where = {"in": "record" if thing.kind == "template" else "store", "places": places, "not_stored": reasons}
    data = value.to_dict() if thing.kind == "program" else {"digest": thing.digest, "name": thing.name, **where}
    return "\n   ".join(map(escape_controls, lines)), data


def _find_nearest(thing: NamedThing, directory: Path | None) -> NamedThing:
    """Returns the thing of the same record or store that differs least.

    Raises:
        click.ClickException: if there are no others.
    """
    listed = list_things("", directory, (thing.kind,))
    # Of several equally near things in a store, the newest counts.
    pairs = [(other, other.texts) for other in (listed if thing.kind == "template" else reversed(listed))]
    others = [pair for pair in pairs if not pair[0].is_same(thing) and (pair[1] or thing.kind == "program")]
    position = find_nearest(thing.texts, [texts for _, texts in others])
    if position is None:
        where = "record" if thing.kind == "template" else "store"
        raise click.ClickException(
            f"{thing.name} is the only {thing.kind} in the {where}: there is nothing to compare it with. "
            "Give a second ID."
        )
    nearest = others[position][0]
    if thing.kind != "program":
        return nearest
    same_key = [other for other, _ in others if other.digest == nearest.digest]  # these differ in their reads
    return min(same_key, key=lambda other: _count_reads(thing, other))


def _compare_templates(a: NamedThing, b: NamedThing, everything: bool) -> Comparison:
    """Returns the differences of two templates or executables. With ``everything`` also all lines of their keys."""
    difference, lines = compare(a.texts, b.texts), dict[str, list[str]]()
    if everything:
        one, other = list_lines(a.texts), list_lines(b.texts)
        lines["lines"] = _diff(a, b, one, other, context=len(one) + len(other))
    rows = [(change.subject, change.a, change.b) for change in difference.changes]
    return difference.sentence(), {"changes": difference.changes, **lines}, _write_blocks(rows, lines, everything)


def _compare_programs(a: NamedThing, b: NamedThing, everything: bool) -> Comparison:
    """Returns how keys and reads of two programs differ; traces too with ``everything`` or if nothing else differs."""
    found = (*compare_program_keys(a.texts, b.texts), *_compare_reads(a, b))
    traces = _compare_traces(a, b) if everything or not found else {}
    data = {"line": _find_line(found[0], a) if found else None, "differences": found}
    table = _write_blocks([(each.what, *each.values) for each in found], traces if everything else {}, everything)
    return _write_sentence(found, traces), {**data, **({"traces": traces} if everything else {})}, table


def _write_blocks(rows: Sequence[tuple[str, str, str]], texts: Mapping[str, Sequence[str]], everything: bool) -> str:
    """Returns a table of differences, of the first only without ``everything``, and below it the diff of each text."""
    shown = rows if everything else rows[:_MOST]
    blocks = [format_table(_COLUMNS, shown)] if rows else []
    blocks += [f"and {len(rows) - _MOST} more (--all shows all of them)"] if len(rows) > len(shown) else []
    for name, lines in texts.items():
        blocks.append("\n".join(["", name, *(wrap(remove_controls(line), count_columns(), _HANG) for line in lines)]))
    return "\n".join(blocks)


def _find_line(first: ProgramDifference, program: NamedThing) -> str | None:
    """Returns the line of the model's source that contains the differing name, or None."""
    sources = _read_traces(program).values() if first.name else ()
    return next(filter(None, (find_source_line(source, first.name) for source in sources)), None)


def _read_traces(program: NamedThing) -> Mapping[str, str]:
    assert isinstance(program.value, StoredEntry)
    return list_sources(program.value.read_traces())


def _compare_reads(a: NamedThing, b: NamedThing) -> tuple[ProgramDifference, ...]:
    stored = (each.value for each in (a, b) if isinstance(each.value, StoredEntry))
    return compare_reads(*({(read.kind, read.name): read.text for read in each.read_reads()} for each in stored))


def _count_reads(a: NamedThing, b: NamedThing) -> float:
    """Returns how many reads differ; infinity if the reads of one program cannot be read."""
    found = or_none(lambda: _compare_reads(a, b))
    return float("inf") if found is None else len(found)


def _compare_traces(a: NamedThing, b: NamedThing) -> dict[str, list[str]]:
    """Returns the diff of each trace that differs, without the lines that give the duration of a pass."""
    sides, found = (_read_traces(a), _read_traces(b)), {}
    for name in TRACES:
        texts = (side.get(name, "").splitlines() for side in sides)
        one, other = ([line for line in lines if not line.startswith("# Constructed by ")] for lines in texts)
        if one != other:
            found[name] = _diff(a, b, one, other)
    return found


def _diff(a: NamedThing, b: NamedThing, one: list[str], other: list[str], context: int = 3) -> list[str]:
    """Returns the lines that differ, with so many equal lines around each."""
    return [*map(blur, difflib.unified_diff(one, other, f"A {a.id}", f"B {b.id}", lineterm="", n=context))]


def _write_sentence(found: Sequence[ProgramDifference], traces: Iterable[str]) -> str:
    """Returns a sentence about the differences of two programs; about their traces if keys and reads are equal."""
    if found:
        return found[0].compare("A", "B", len(found) - 1)
    differing = " and the ".join(traces)
    same = f"Their keys and all that was read are the same, and they differ in the {differing} trace."
    return same if differing else "They do not differ."


def _pick_runs(record: RecordReader, old: str | None, new: str | None) -> tuple[Run, Run]:
    if old is not None:
        return pick_run(record, old), pick_run(record, new)
    runs = record.runs()
    if len(runs) < 2:
        raise click.ClickException(
            f"{record.path} has {'one run' if runs else 'no runs'}, and a comparison needs two: run a model with "
            "fusioncache again"
        )
    return runs[1], runs[0]


def _diff_runs(record: RecordReader, old: Run, new: Run, *, as_json: bool) -> None:
    """Prints how two runs differ: counts, templates that only one of them had, and those that were compiled again."""
    before, after = ({each.digest: each for each in record.templates(run.id, texts=False)} for run in (old, new))
    changed = {
        "new": [each for digest, each in after.items() if digest not in before],
        "gone": [each for digest, each in before.items() if digest not in after],
        "compiled again": [each for digest, each in after.items() if digest in before and each.compiles],
    }
    sides = {"old": old, "new": new}
    if as_json:
        counted = {name: {side: getattr(run.stats, name) for side, run in sides.items()} for name in _COUNTS + _SECONDS}
        found = dict(zip(("new_templates", "gone_templates", "compiled_again"), changed.values(), strict=True))
        about = {"names": {side: run.name for side, run in sides.items()}, "counts": counted}
        left_out = {"unrecorded": {side: run.unrecorded for side, run in sides.items()}}
        print_json({"old": old.id, "new": new.id, **about, **left_out, **found})
        return
    if old.id == new.id:
        click.echo(f"Both IDs name the same run: {format_run_label(old)}")
        return
    click.echo(f"old  {format_run_label(old)}\nnew  {format_run_label(new)}\n")
    click.echo(format_table(_RUN_COLUMNS, map(list, _list_counts(old, new))))
    rows = [(each.digest, each.name, what, each.compile_seconds) for what, some in changed.items() for each in some]
    if rows:
        click.echo(f"\n{format_table(_TEMPLATE_COLUMNS, rows)}")
    else:
        say("Both have the same templates, and the new run compiled none of them.")
    for side, run in sides.items():
        if run.missing:
            say(f"Of the {side} run the record lacks {run.missing}.")


def _list_counts(old: Run, new: Run) -> Iterator[tuple[str, ...]]:
    for name in _COUNTS + _SECONDS:
        before, after = getattr(old.stats, name), getattr(new.stats, name)
        write, change = (format_seconds, "+.3f") if name in _SECONDS else (str, "+d")
        yield name, write(before), write(after), format(after - before, change)
