"""What the commands print of templates and programs, for people."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from fusioncache.cli.table import Column, columns_of_output, print_table, wrapped
from fusioncache.humanize import escape_controls, format_age, format_arities, format_bytes, format_seconds
from fusioncache.record.stats import TemplateCounts

if TYPE_CHECKING:
    from fusioncache.store import Summary

_ID = Column("id", id=True)
_TEMPLATE_COLUMNS = (
    _ID,
    Column("name", cut=True),
    Column("ops", number=True, rank=2),
    Column("regions", number=True),
    Column("hits", number=True),
    Column("arities", cut=True, rank=1),
    Column("compiles", number=True, rank=3),
    Column("seconds", number=True),
)
_PROGRAM_COLUMNS = (
    _ID,
    Column("name", cut=True),
    Column("backend"),
    Column("size", number=True),
    Column("age", number=True, rank=1),
    Column("seconds", number=True),
)
_KEPT_COLUMN = Column("kept")


def print_templates(templates: Sequence[TemplateCounts], *, wide: bool = False) -> None:
    """Prints a table of templates. What does not fit is left out, unless it is to be wide."""
    print_table(_TEMPLATE_COLUMNS, [_template_row(template) for template in templates], wide=wide)


def print_programs(programs: Sequence[Summary], refused: Mapping[str, str], *, wide: bool = False) -> None:
    """Prints a table of what is in a store. What does not fit is left out, unless it is to be wide.

    Args:
        programs: what to print.
        refused: of those that stand for something that was not kept, why, by digest and backend.
        wide: whether to leave nothing out.
    """
    now = time.time()
    rows = [_program_row(program, now) for program in programs]
    reasons = [refused.get(f"{program.digest}.{program.backend}") for program in programs]
    if not any(reasons):
        print_table(_PROGRAM_COLUMNS, rows, wide=wide)
        return
    marked = [(*row, "no" if reason else "yes") for row, reason in zip(rows, reasons, strict=True)]
    print_table((*_PROGRAM_COLUMNS, _KEPT_COLUMN), marked, wide=wide)
    click.echo()
    for reason, number in Counter(filter(None, reasons)).most_common():
        text = (
            f"{number} of {len(programs)} cannot be kept, so that each process compiles them: {escape_controls(reason)}"
        )
        click.echo(wrapped(text, None if wide else columns_of_output()))


def _template_row(template: TemplateCounts) -> tuple[str, ...]:
    arities, seconds = format_arities(template.arities), format_seconds(template.compile_seconds)
    counts = (template.ops, template.regions, template.hits, arities, template.compiles)
    return (template.digest, template.name, *map(str, counts), seconds)


def _program_row(program: Summary, now: float) -> tuple[str, ...]:
    name, seconds = escape_controls(program.name) or "-", format_seconds(program.seconds)
    return (
        program.digest,
        name,
        program.backend,
        format_bytes(program.size),
        format_age(now - program.created),
        seconds,
    )
