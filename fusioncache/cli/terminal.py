"""What a terminal shows: source in colours, tables that fit it, and how far a long command has come."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from fusioncache.humanize import escape_controls

if TYPE_CHECKING:
    from fusioncache.store.sharing import Progress


def has_colours() -> bool:
    """Returns whether stdout is a terminal that may have colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def highlight_source(text: str, language: str) -> str:
    """Returns the text, with colours if it goes to a terminal that may have them."""
    if not has_colours():
        return text
    from pygments import highlight
    from pygments.formatters import TerminalFormatter
    from pygments.lexers import get_lexer_by_name

    return str(highlight(text, get_lexer_by_name(language), TerminalFormatter()))


def remove_controls(text: str) -> str:
    """Returns source without what would tell a terminal more than to print it."""
    return "".join(char if char in "\n\t" else escape_controls(char) for char in text)


ID_DIGITS = 12
"""How much of an id a terminal shows, which is all that the commands need."""

_GAP = 2
_END = 9
"""How many characters of a name's end stay: as many as the digest in it has, and what is before that."""
_LEAST = 24
"""Characters that a cell which may be cut has at least, as long as another column can be left out instead."""


@dataclass(frozen=True, slots=True)
class Column:
    """How a column looks.

    Attributes:
        title: at its head.
        number: whether it is set flush right.
        id: whether a terminal shows only the start of each value.
        cut: whether a terminal may show less of its values, without their middle.
        rank: whether it may be left out where there is no room, the largest first; 0 if it may not.
    """

    title: str
    number: bool = False
    id: bool = False
    cut: bool = False
    rank: int = 0


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, wide: bool = False, most: int | None = None
) -> None:
    """Prints rows of cells under the columns' titles.

    Args:
        columns: how each looks.
        rows: the cells.
        wide: whether to leave nothing out on a terminal either.
        most: how many columns there are where nobody says; None if as many as it takes.
    """
    width = None if wide else count_columns() or most
    if width is None:
        click.echo(_text(columns, rows))
        return
    short = [[_start(column, cell) for column, cell in zip(columns, row, strict=True)] for row in rows]
    click.echo(_text(*_fit(columns, short, width), width))


def count_columns() -> int | None:
    """Returns how many columns there are for what is printed; None if nobody says."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def format_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    """Returns a line for each name and value, the values aligned."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in pairs)


def format_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells under the columns' titles, with nothing left out and no colours."""
    return "\n".join(line.rstrip() for line in _lines(columns, rows))


def shorten(text: str, width: int) -> str:
    """Shortens a text to so many characters. Its end stays, because that is where names differ."""
    if len(text) <= width:
        return text
    if width < 1:
        return ""
    end = min((width - 1) // 2, _END)
    return f"{text[: width - end - 1]}…{text[len(text) - end :]}"


def cut(text: str, width: int) -> str:
    """Shortens a text to so many characters. Its beginning stays."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def wrap(text: str, width: int | None) -> str:
    """Wraps a text in lines of that width, if there is one, the second and later ones indented. No word is broken."""
    if width is None:
        return text
    return textwrap.fill(
        text, max(width, _LEAST), subsequent_indent=" " * _GAP, break_long_words=False, break_on_hyphens=False
    )


def shorten_id(digest: str) -> str:
    """Returns a digest: on a terminal its start, which is all that the commands need."""
    return digest if count_columns() is None else digest[:ID_DIGITS]


def _start(column: Column, cell: str) -> str:
    return cell[:ID_DIGITS] if column.id else cell


def _fit(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> tuple[Sequence[Column], Sequence[Sequence[str]]]:
    """Returns the columns that there is room for, with cells that fit."""
    widths = _widths(columns, rows)
    least = [min(own, _LEAST) if column.cut else own for column, own in zip(columns, widths, strict=True)]
    left = list(range(len(columns)))
    while _total([least[at] for at in left]) > width and any(columns[at].rank for at in left):
        left.remove(max(left, key=lambda at: columns[at].rank))
    room = _cut_widths([columns[at] for at in left], [widths[at] for at in left], width)
    cells = [[shorten(row[at], own) for at, own in zip(left, room, strict=True)] for row in rows]
    return [columns[at] for at in left], cells


def _cut_widths(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """Returns the widths after the widest of those that may be cut gave up what there is no room for."""
    found = list(widths)
    for _ in columns:
        over = _total(found) - width
        able = [at for at, column in enumerate(columns) if column.cut and found[at] > len(column.title)]
        if over <= 0 or not able:
            break
        widest = max(able, key=lambda at: found[at])
        found[widest] = max(found[widest] - over, len(columns[widest].title))
    return found


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, cells)) for cells in zip([column.title for column in columns], *rows, strict=True)]


def _lines(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = zip(columns, _widths(columns, rows), strict=True)
    fitted = (" " * _GAP).join(f"{{:{'>' if column.number else '<'}{width}}}" for column, width in cells).format
    return [fitted(*line) for line in [[column.title for column in columns], *rows]]


def _text(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Formats the table, with colours on a terminal that may have them."""
    width = width if any(column.cut for column in columns) else None
    head, *lines = [line.rstrip()[:width] for line in _lines(columns, rows)]
    if not has_colours():
        return "\n".join([head, *lines])
    if columns[0].id:
        ids = [len(row[0]) for row in rows]
        lines = [click.style(line[:end], fg="cyan") + line[end:] for line, end in zip(lines, ids, strict=True)]
    return "\n".join([click.style(head, bold=True), *lines])


@contextmanager
def show_progress(what: str) -> Iterator[Progress | None]:
    """Shows a bar on the terminal, and yields what moves it; None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
