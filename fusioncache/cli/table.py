"""Tables: fitted to a terminal with rich, else as plain text with nothing left out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import click

_ID_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Column:
    """How a column looks.

    Attributes:
        title: at its head.
        number: whether it is set flush right.
        id: whether a terminal shows only the start of each value, which is all that the commands need.
    """

    title: str
    number: bool = False
    id: bool = False


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Prints rows of cells under the columns' titles."""
    if sys.stdout.isatty():
        _print_fitted(columns, rows)
    else:
        click.echo(table_text(columns, rows))


def pairs_text(pairs: Sequence[tuple[str, str]]) -> str:
    """A line for each name and value, the values aligned."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in pairs)


def table_text(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells under the columns' titles, with nothing left out."""
    lines = [[column.title for column in columns], *rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    cells = (f"{{:{'>' if column.number else '<'}{width}}}" for column, width in zip(columns, widths, strict=True))
    fitted = "  ".join(cells).format
    return "\n".join(fitted(*line).rstrip() for line in lines)


def _print_fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        style = "cyan" if column.id else ""
        justify: Literal["left", "right"] = "right" if column.number else "left"
        table.add_column(column.title, justify=justify, style=style, no_wrap=column.id, overflow="fold")
    for row in rows:
        # Text, because rich would take what is in brackets for markup.
        cells = zip(columns, row, strict=True)
        table.add_row(*(Text(cell[:_ID_LENGTH] if column.id else cell) for column, cell in cells))
    Console().print(table)
