"""What the commands print for people."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fusioncache.cache.record import Run
from fusioncache.cache.stats import TemplateStats
from fusioncache.cli.table import Column, pairs_text, print_table
from fusioncache.cli.words import arities_text, one_line, seconds_text, time_text

_ID = Column("id", id=True)
_RUN_COLUMNS = (
    _ID,
    Column("started"),
    Column("pid", number=True),
    Column("regions", number=True),
    Column("templates", number=True),
    Column("hits", number=True),
    Column("compiles", number=True),
    Column("compile seconds", number=True),
    Column("command"),
)
_TEMPLATE_COLUMNS = (
    _ID,
    Column("name"),
    Column("regions", number=True),
    Column("hits", number=True),
    Column("arities"),
    Column("compiles", number=True),
    Column("compile seconds", number=True),
)
_ENTRY_NAMES = {"constants": "constant", "attributes": "attribute"}
"""Ingredients with an entry a line that the ops mention by name and number."""


def print_run(run: Run) -> None:
    """Prints a run and its counts."""
    stats = run.stats
    pairs = [
        ("run", run.id),
        ("command", one_line(run.command)),
        ("started", time_text(run.started)),
        ("pid", str(run.pid)),
        ("regions", str(stats.regions)),
        ("templates", str(stats.templates)),
        ("hits", str(stats.hits)),
        ("misses", str(stats.misses)),
        ("bypasses", str(sum(stats.bypasses.values()))),
        *((f"  {one_line(reason)}", str(count)) for reason, count in sorted(stats.bypasses.items())),
        ("compiles", str(stats.compiles)),
        ("compile seconds", seconds_text(stats.compile_seconds)),
        ("loads", str(stats.loads)),
        ("load seconds", seconds_text(stats.load_seconds)),
        ("not kept", str(sum(stats.unkept.values()))),
        *((f"  {one_line(reason)}", str(count)) for reason, count in sorted(stats.unkept.items())),
        ("saved seconds", f"{seconds_text(stats.saved_seconds)} (an estimate)"),
        ("canonicalize seconds", seconds_text(stats.canonicalize_seconds)),
    ]
    click.echo(pairs_text(pairs))


def print_runs(runs: Sequence[Run]) -> None:
    """Prints a table of runs."""
    print_table(_RUN_COLUMNS, [_run_row(run) for run in runs])


def print_templates(templates: Sequence[TemplateStats]) -> None:
    """Prints a table of templates."""
    print_table(_TEMPLATE_COLUMNS, [_template_row(template) for template in templates])


def print_template(template: TemplateStats) -> None:
    """Prints all there is to know of a template."""
    counts = [
        ("name", template.name),
        ("digest", template.digest),
        ("regions", str(template.regions)),
        ("hits", str(template.hits)),
        ("arities", arities_text(template.arities)),
        ("compiles", str(template.compiles)),
        ("compile seconds", seconds_text(template.compile_seconds)),
        ("loads", str(template.loads)),
        ("load seconds", seconds_text(template.load_seconds)),
    ]
    parts = [pairs_text(counts), *(_ingredient_text(name, text) for name, text in template.ingredients)]
    click.echo("\n\n".join(parts))


def _ingredient_text(name: str, text: str) -> str:
    lines = [one_line(line) for line in text.split("\n")] if text else ["(none)"]
    if text and name in _ENTRY_NAMES:
        lines = [f"{_ENTRY_NAMES[name]}{number}: {line}" for number, line in enumerate(lines)]
    return "\n".join([name, *(f"  {line}" for line in lines)])


def _run_row(run: Run) -> tuple[str, ...]:
    stats = run.stats
    counts = (run.pid, stats.regions, stats.templates, stats.hits, stats.compiles)
    seconds = seconds_text(stats.compile_seconds)
    return (run.id, time_text(run.started), *map(str, counts), seconds, one_line(run.command))


def _template_row(template: TemplateStats) -> tuple[str, ...]:
    arities, seconds = arities_text(template.arities), seconds_text(template.compile_seconds)
    counts = str(template.regions), str(template.hits), arities, str(template.compiles)
    return (template.digest, template.name, *counts, seconds)
