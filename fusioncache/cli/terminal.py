"""What a terminal shows: source in colours, tables that fit it, and how far a long command has come."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import click

from fusioncache.humanize import escape_controls, fold_text

if TYPE_CHECKING:
    from fusioncache.store.remote import Progress


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
"""Characters that a cell which may be shortened or folded has at least, as long as another column can be left out."""


@dataclass(frozen=True, slots=True)
class Column:
    """How a column looks.

    Attributes:
        title: at its head.
        number: whether it is set flush right.
        id: whether a terminal shows only the start of each value.
        cut: whether a terminal may show less of its values, without their middle.
        fold: whether a terminal may show its values in several lines.
        end: how many characters of the end of a value that is cut stay.
        rank: whether it may be left out where there is no room, the largest first; 0 if it may not.
    """

    title: str
    number: bool = False
    id: bool = False
    cut: bool = False
    fold: bool = False
    end: int = _END
    rank: int = 0

    @property
    def is_flexible(self) -> bool:
        """Whether it can be narrower than its widest value."""
        return self.cut or self.fold


def count_columns() -> int | None:
    """Returns the width of the terminal; None if the output goes elsewhere, and ``COLUMNS`` is not set."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, wide: bool = False, most: int | None = None
) -> None:
    """Prints rows of cells under the columns' titles; the arguments are those of ``format_table``."""
    click.echo(format_table(columns, rows, wide=wide, most=most))


def format_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    wide: bool = False,
    most: int | None = None,
    indent: int = 0,
) -> str:
    """Returns rows of cells under the columns' titles, in the width of the terminal, with colours if it has them.

    Args:
        columns: how each looks.
        rows: the cells.
        wide: whether to leave nothing out on a terminal either.
        most: the width if the output goes elsewhere; None if nothing is left out then.
        indent: by how much the caller will indent the lines.
    """
    width = None if wide else _less(count_columns() or most, indent)
    if width is not None:
        cells = [[_start(column, cell) for column, cell in zip(columns, row, strict=True)] for row in rows]
        columns, rows = _fit(columns, cells, width)
    head, *lines = _lines(columns, [[column.title for column in columns], *rows], width)
    if not has_colours():
        return "\n".join([head, *lines])
    if columns[0].id:
        ids = [len(row[0]) for row in rows]
        lines = [click.style(line[:end], fg="cyan") + line[end:] for line, end in zip(lines, ids, strict=True)]
    return "\n".join([click.style(head, bold=True), *lines])


_PAIR = (Column(""), Column("", fold=True))


def format_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    """Returns names and values, the values aligned, in the width of the terminal. Names have half of it at most."""
    width = count_columns()
    if width is None:
        return "\n".join(_lines(_PAIR, pairs, None))
    folded = [(_fold(name, width // 2), value) for name, value in pairs]
    return "\n".join(_lines(*_fit(_PAIR, folded, width), width))


def shorten(text: str, width: int, end: int = _END) -> str:
    """Shortens a text to so many characters. So many at its end stay, because that is where names differ."""
    if len(text) <= width:
        return text
    if width < 1:
        return ""
    end = min((width - 1) // 2, end)
    return f"{text[: width - end - 1]}…{text[len(text) - end :]}"


def cut(text: str, width: int) -> str:
    """Shortens a text to so many characters. Its beginning stays."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def wrap(text: str, width: int | None, indent: int | None = None) -> str:
    """Wraps each line of a text to that width, if there is one, and indents what goes on. Paths stay whole."""
    if width is None:
        return text
    lines = ((line, _hang(line) if indent is None else indent) for line in text.split("\n"))
    return "\n".join(part for line, by in lines for part in fold_text(line, max(width, _LEAST), by, keep_paths=True))


def say(text: str, *, err: bool = True) -> None:
    """Prints sentences in the width of the terminal: to stderr, because they are no data, or to stdout."""
    click.echo(wrap(text, count_columns()), err=err)


def shorten_id(digest: str) -> str:
    """Returns a digest: on a terminal its start, which is all that the commands need."""
    return digest if count_columns() is None else digest[:ID_DIGITS]


def _start(column: Column, cell: str) -> str:
    return cell[:ID_DIGITS] if column.id else cell


def _less(width: int | None, indent: int) -> int | None:
    return None if width is None else width - indent


def _fit(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> tuple[Sequence[Column], Sequence[Sequence[str]]]:
    """Returns the columns that there is room for, with cells that fit. A folded cell has line breaks."""
    widths = _widths([[column.title for column in columns], *rows])
    least = [min(own, _LEAST) if column.is_flexible else own for column, own in zip(columns, widths, strict=True)]
    left = list(range(len(columns)))
    while _total([least[at] for at in left]) > width and any(columns[at].rank for at in left):
        left.remove(max(left, key=lambda at: columns[at].rank))
    columns, rows = [columns[at] for at in left], [[row[at] for at in left] for row in rows]
    room = _share(columns, rows, width)
    return columns, [[_shrink(*each) for each in zip(columns, row, room, strict=True)] for row in rows]


def _share(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Returns the widths that columns get. Those that are flexible share what the others leave."""
    titles = [column.title for column in columns]
    found = _widths([titles, *rows])
    flexible = [at for at, column in enumerate(columns) if column.is_flexible]
    room = width - _total(found) + sum(found[at] for at in flexible)
    words = [max([len(titles[at]), *(_longest_word(row[at]) for row in rows)]) for at in flexible]
    least = words if sum(words) <= room else [1] * len(flexible)
    more = _divide([found[at] - own for at, own in zip(flexible, least, strict=True)], room - sum(least))
    for at, own, extra in zip(flexible, least, more, strict=True):
        found[at] = own + extra
    return found


def _divide(wanted: Sequence[int], room: int) -> list[int]:
    """Divides room among those that want some: equally, and to none more than it wants."""
    found = list(wanted)
    for number, at in enumerate(sorted(range(len(wanted)), key=lambda at: wanted[at])):
        found[at] = min(wanted[at], max(room // (len(wanted) - number), 0))
        room -= found[at]
    return found


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _shrink(column: Column, cell: str, width: int) -> str:
    if column.fold:
        return _fold(cell, width)
    return shorten(cell, width, column.end) if column.cut else cell


def _fold(cell: str, width: int) -> str:
    return "\n".join(fold_text(cell, width, _hang(cell) if cell.startswith(" ") else 0))


def _hang(line: str) -> int:
    """Returns by how much the lines in which a line goes on are indented."""
    return len(line) - len(line.lstrip()) + _GAP


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Returns the width of the widest line of each column's cells."""
    return [max(len(line) for cell in cells for line in cell.split("\n")) for cells in zip(*rows, strict=True)]


def _lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Returns each row as aligned text, of several lines if a cell has several."""
    sides = zip(columns, _widths(rows), strict=True)
    write = (" " * _GAP).join(f"{{:{'>' if column.number else '<'}{own}}}" for column, own in sides).format
    found = []
    for row in rows:
        lines = zip_longest(*(cell.split("\n") for cell in row), fillvalue="")
        found.append("\n".join(_cut_line(write(*cells).rstrip(), width) for cells in lines))
    return found


def _cut_line(line: str, width: int | None) -> str:
    return line if width is None else cut(line, max(width, 1))


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
