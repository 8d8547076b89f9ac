"""The command diff: what changed from one run to another, or from one program of a model to another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fusioncache.cli.ids import Candidate, Kind, find, pick
from fusioncache.cli.json_output import encode_template, print_json
from fusioncache.cli.lookup import pick_run
from fusioncache.cli.options import RunId, directory_option, json_option
from fusioncache.cli.program_comparison import diff_programs
from fusioncache.cli.programs import KeptProgram
from fusioncache.cli.runs import format_run_label
from fusioncache.cli.template_comparison import print_comparison, read_subject
from fusioncache.cli.terminal import Column, print_table, say
from fusioncache.humanize import format_seconds
from fusioncache.observe.record.reader import RecordReader
from fusioncache.observe.record.runs import Run
from fusioncache.observe.record.stats import TemplateCounts

_COUNTS = ("regions", "templates", "hits", "misses", "compiles", "loads", "programs_loaded", "programs_made")
_SECONDS = (
    *("compile_seconds", "load_seconds", "loaded_compile_seconds", "saved_seconds", "canonicalize_seconds"),
    "loaded_program_seconds",
)
_KINDS: tuple[Kind, ...] = ("run", "program", "template", "executable")
_TITLES = {
    "programs_made": "programs traced and stored",
    "loaded_compile_seconds": "compile seconds of what was loaded",
    "loaded_program_seconds": "tracing seconds of what was loaded",
}
"""What counts are called for people, if not by their names."""
_COLUMNS = (Column("count"), Column("old", number=True), Column("new", number=True), Column("change", number=True))
_TEMPLATE_COLUMNS = (
    Column("id", id=True),
    Column("name", cut=True),
    Column("what"),
    Column("compile seconds", number=True),
)


@dataclass(frozen=True, slots=True)
class _Change:
    """How two runs differ: templates that only one of them had, and those that both compiled."""

    new: tuple[TemplateCounts, ...]
    gone: tuple[TemplateCounts, ...]
    again: tuple[TemplateCounts, ...]


@click.command()
@click.argument("old", type=RunId(), required=False)
@click.argument("new", type=RunId(), required=False)
@directory_option
@json_option
def diff(old: str | None, new: str | None, directory: Path | None, as_json: bool) -> None:
    """Show what changed from run OLD to run NEW, or between two programs, templates or executables.

    Both are starts of run IDs or parts of run names, as 'stats --runs' lists them. Without NEW it is the newest run;
    without both, the newest run and the one before it. Templates are the same if their keys are, so a change of a
    version makes all of them new.

    Of two programs it shows the lines of their keys that differ, what Thunder read for them, and their traces. Of two
    templates or executables it shows what 'explain' shows.

    The seconds of what was loaded are those that compiling or tracing it took before it was stored. What was saved is
    an estimate: 'stats --help' says of what.

    \b
    Examples:
        fusioncache diff
        fusioncache diff 5f3a 91c0
        fusioncache diff old.py new.py
        fusioncache diff 5f3a --json
        fusioncache diff 3f9a2c778a1b c04d1f6e2b90
    """
    if old is not None and new is not None:
        pair = _pick_pair(old, new, directory)
        if not isinstance(pair[0].value, Run):
            _compare(*pair, directory, as_json=as_json)
            return
    if directory is not None:
        raise click.UsageError("--dir names a store: give the IDs of two programs, templates or executables with it.")
    record = RecordReader()
    runs = _pick_runs(record, old, new)
    change = _change(*(record.templates(run.id) for run in runs))
    if as_json:
        print_json(_data(*runs, change))
    elif runs[0].id == runs[1].id:
        click.echo(f"Both IDs name the same run: {format_run_label(runs[0])}")
    else:
        _print(*runs, change)


def _pick_pair(old: str, new: str, directory: Path | None) -> tuple[Candidate, Candidate]:
    """Returns two runs, if both may be runs, else two things of one kind, or a template and an executable.

    Raises:
        click.ClickException: if one of them is not there, or they cannot be compared.
    """
    if all(find(wanted, directory, ("run",)) for wanted in (old, new)):
        return pick(old, directory, ("run",)), pick(new, directory, ("run",))
    one = pick(old, directory, _KINDS)
    like: tuple[Kind, ...] = (one.kind,) if one.kind in ("run", "program") else ("template", "executable")
    return one, pick(new, directory, like)


def _compare(old: Candidate, new: Candidate, directory: Path | None, *, as_json: bool) -> None:
    if isinstance(old.value, KeptProgram) and isinstance(new.value, KeptProgram):
        diff_programs(old.value, new.value, as_json=as_json)
        return
    a, b = read_subject(old, directory), read_subject(new, directory)
    print_comparison(a, b, None, everything=False, as_json=as_json)


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


def _change(old: Iterable[TemplateCounts], new: Iterable[TemplateCounts]) -> _Change:
    before = {template.digest: template for template in old}
    after = {template.digest: template for template in new}
    return _Change(
        tuple(template for digest, template in after.items() if digest not in before),
        tuple(template for digest, template in before.items() if digest not in after),
        tuple(template for digest, template in after.items() if digest in before and template.compiles),
    )


def _data(old: Run, new: Run, change: _Change) -> dict[str, Any]:
    sides = {"old": old, "new": new}
    counts = {name: {side: getattr(run.stats, name) for side, run in sides.items()} for name in (*_COUNTS, *_SECONDS)}
    return {
        **{side: run.id for side, run in sides.items()},
        "names": {side: run.name for side, run in sides.items()},
        "counts": counts,
        "unrecorded": {side: run.unrecorded for side, run in sides.items()},
        "new_templates": [encode_template(template) for template in change.new],
        "gone_templates": [encode_template(template) for template in change.gone],
        "compiled_again": [encode_template(template) for template in change.again],
    }


def _print(old: Run, new: Run, change: _Change) -> None:
    click.echo(f"old  {format_run_label(old)}\nnew  {format_run_label(new)}\n")
    print_table(_COLUMNS, [_row(old, new, name) for name in (*_COUNTS, *_SECONDS)])
    rows = [
        *(_template_row(template, "new") for template in change.new),
        *(_template_row(template, "gone") for template in change.gone),
        *(_template_row(template, "compiled again") for template in change.again),
    ]
    if rows:
        click.echo()
        print_table(_TEMPLATE_COLUMNS, rows)
    else:
        say("Both have the same templates, and the new run compiled none of them.")
    for side, run in {"old": old, "new": new}.items():
        if run.missing:
            say(f"Of the {side} run the record lacks {run.missing}.")


def _row(old: Run, new: Run, name: str) -> tuple[str, ...]:
    before, after = getattr(old.stats, name), getattr(new.stats, name)
    title = _TITLES.get(name, name.replace("_", " "))
    if name in _SECONDS:
        return (title, format_seconds(before), format_seconds(after), f"{after - before:+.3f}")
    return (title, str(before), str(after), f"{after - before:+d}")


def _template_row(template: TemplateCounts, what: str) -> tuple[str, ...]:
    return (template.digest, template.name, what, format_seconds(template.compile_seconds))
