"""What the benchmarks' tables have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Column[Row]:
    """A column of a table.

    Attributes:
        name: above it.
        cell: what a row says in it; None if it has no value there.
        otherwise: what is written there then: the reason, in a word or two.
    """

    name: str
    cell: Callable[[Row], str | None]
    otherwise: str = "none"


def console() -> Console:
    """Returns the standard output, wide enough for a table where it is no terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_WIDTH)


def print_line(out: Console, text: str) -> None:
    """Prints a line as it is, however long."""
    out.print(escape(text), soft_wrap=True)


def make_table(
    title: str,
    caption: str | None,
    columns: Iterable[str],
    rows: Iterable[Sequence[str]],
    *,
    wrap: bool = True,
    sections: bool = False,
) -> Table:
    """Returns a table.

    Args:
        title: above it.
        caption: below it.
        columns: their names. One that starts with ``<`` is set flush left.
        rows: the cells of each.
        wrap: whether names and cells may take several lines.
        sections: whether a line parts rows whose first cells differ.
    """
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        flush_left = name.startswith("<")
        table.add_column(name.removeprefix("<"), justify="left" if flush_left else "right", no_wrap=not wrap)
    before = None
    for row in rows:
        if sections and before not in (None, row[0]):
            table.add_section()
        before = row[0]
        table.add_row(*row)
    return table


def table_by_layers[Row](
    title: str,
    caption: str,
    head: str,
    columns: Sequence[Column[Row]],
    rows: Sequence[tuple[int, str, Row | str]],
) -> Table:
    """Returns a table in sections, one for each number of layers.

    Args:
        title: above it.
        caption: below it.
        head: the name of the column after that of the layers.
        columns: those that follow; one in which no row has a value is left out.
        rows: the number of layers, the cell after it, and what was found; or in its place what all cells say.
    """
    measured = [row for *_, row in rows if not isinstance(row, str)]
    shown = [column for column in columns if any(column.cell(row) is not None for row in measured)]
    cells = (
        [
            str(layers),
            name,
            *(row if isinstance(row, str) else column.cell(row) or column.otherwise for column in shown),
        ]
        for layers, name, row in rows
    )
    names = (column.name for column in shown)
    return make_table(title, caption, ("layers", f"<{head}", *names), cells, wrap=False, sections=True)
