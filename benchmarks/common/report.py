"""What the benchmarks' tables have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
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
    """The standard output, wide enough for a table where it is no terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_WIDTH)


def table_by_layers(title: str, caption: str, columns: Sequence[str], rows: Iterable[tuple[int, list[str]]]) -> Table:
    """A table in sections, one for each number of layers.

    Args:
        title: above it.
        caption: below it.
        columns: after that of the layers; the first one is set flush left.
        rows: the number of layers and the other cells of each.
    """
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, name in enumerate(("layers", *columns)):
        table.add_column(name, justify="left" if number == 1 else "right", no_wrap=True)
    before = None
    for layers, cells in rows:
        if before is not None and before != layers:
            table.add_section()
        before = layers
        table.add_row(str(layers), *cells)
    return table


def cells_of[Row](columns: Sequence[Column[Row]], rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The names of the columns in which some row has a value, and the cells of all rows in these."""
    found = [(column, [column.cell(row) for row in rows]) for column in columns]
    kept = [(column, cells) for column, cells in found if any(cell is not None for cell in cells)]
    filled = [[column.otherwise if cell is None else cell for cell in cells] for column, cells in kept]
    return [column.name for column, _ in kept], [list(row) for row in zip(*filled, strict=True)]
