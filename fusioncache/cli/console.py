"""Shared parts of the commands: options, tables that fit the terminal, sentences, coloured source, JSON, progress."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from click.shell_completion import CompletionItem

from fusioncache.humanize import escape_controls, fold_text

if TYPE_CHECKING:
    from fusioncache.cache.exchange import Progress
    from fusioncache.cli.things import Kind

SCHEMA = 2
"""The version of the JSON format. Raise it when a field changes its meaning or is removed, not for a new field."""

ID_DIGITS = 12
"""How many digits of an ID a terminal shows. The commands need no more."""

_GAP = 2
_END = len("GPT · 2023-11-14 22:13")
"""The most characters of a shortened name's end: a digest, or the last model of a run and its start time."""
_OWN_FILE = re.compile(rb'\Afusioncache (?:pack|signed) |\A<svg [^>]*class="fc-graph"|content="fusioncache report"')
"""Matches the first bytes of a pack, a picture or a report."""
_LOOKED_AT = 1000
"""How many bytes of a file are searched for this."""
_LEAST = 24
"""The least width of a cell that may be shortened or folded, as long as another column can be left out."""


def print_json(data: Mapping[str, Any]) -> None:
    """Prints an object as JSON, with its schema: exact values, times in seconds, sizes in bytes."""
    click.echo(json.dumps({"schema": SCHEMA, **data}, indent=2, default=_encode))


def _encode(value: Any) -> Any:
    """Returns a value as data for JSON: its ``to_dict()``, else its fields or items, else its text."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return encode_fields(value)
    return dict(value) if isinstance(value, Mapping) else str(value)


def encode_fields(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass, by name. Unlike ``dataclasses.asdict`` it copies none of them."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def has_colours() -> bool:
    """True if stdout is a terminal, and colours are not disabled."""
    return _is_terminal(sys.stdout) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # None if it was closed before the start


def highlight_source(text: str, language: str) -> str:
    """Returns source without control characters, with colours if stdout may have them."""
    text = remove_controls(text)
    if not has_colours():
        return text
    from pygments import highlight
    from pygments.formatters import TerminalFormatter
    from pygments.lexers import get_lexer_by_name

    return str(highlight(text, get_lexer_by_name(language), TerminalFormatter()))


def remove_controls(text: str) -> str:
    """Returns source with escaped control characters, so that a terminal only prints it."""
    return "".join(char if char in "\n\t" else escape_controls(char) for char in text)


def format_cell(value: Any) -> str:
    """Returns a value in one line; ``-`` if there is none."""
    return "-" if value is None or value == "" else str(value)


@dataclass(frozen=True, slots=True)
class Column:
    """The format of a table's column.

    Attributes:
        title: the heading.
        format: returns the text of a value.
        key: the key of its value in rows that are mappings; empty if it is the title.
        number: whether it is aligned to the right.
        id: whether a terminal shows only the start of each value.
        cut: whether a terminal may omit the middle of its values.
        fold: whether a terminal may break its values into several lines.
        rank: the order of omission if there is no room, the largest first; 0 if it is never left out.
    """

    title: str
    format: Callable[[Any], str] = format_cell
    key: str = ""
    number: bool = False
    id: bool = False
    cut: bool = False
    fold: bool = False
    rank: int = 0

    def cell(self, value: Any) -> str:
        """Returns the text for a value, in one line."""
        return escape_controls(self.format(value))


type Row = Mapping[str, Any] | Sequence[Any]
"""The values of a table's row, by the keys of the columns or in their order."""


def count_columns() -> int | None:
    """Returns the width of the terminal; None if the output goes elsewhere, and ``COLUMNS`` is not set."""
    if _is_terminal(sys.stdout) or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def format_table(columns: Sequence[Column], rows: Iterable[Row], *, indent: int = 0) -> str:
    """Returns a table with titles, in the width of the terminal, with colours if it has them.

    Args:
        columns: the formats of the columns.
        rows: the values.
        indent: the indent that the caller will add to the lines.
    """
    width = count_columns()
    cells = [[column.cell(value) for column, value in _pair(columns, row)] for row in rows]
    if width is not None:
        width = max(width - indent, 1)
        cells = [[cell[:ID_DIGITS] if column.id else cell for column, cell in _pair(columns, row)] for row in cells]
        columns, cells = _fit(columns, cells, width)
    head, *lines = _write_lines(columns, [[column.title for column in columns], *cells], width)
    if has_colours():
        head, ids = click.style(head, bold=True), [len(row[0]) if columns[0].id else 0 for row in cells]
        lines = [click.style(line[:end], fg="cyan") + line[end:] for line, end in zip(lines, ids, strict=True)]
    return "\n".join([head, *lines])


def _pair(columns: Sequence[Column], row: Row) -> Iterator[tuple[Column, Any]]:
    values = [row[column.key or column.title] for column in columns] if isinstance(row, Mapping) else row
    return zip(columns, values, strict=True)


_PAIR = (Column("", fold=True), Column("", fold=True))


def format_pairs(pairs: Iterable[tuple[str, Any]]) -> str:
    """Returns names and aligned values, in the width of the terminal. Pairs without a value are left out."""
    return format_table(_PAIR, [pair for pair in pairs if pair[1] is not None]).partition("\n")[2]


def format_block(heading: str, text: str) -> str:
    """Returns a text, indented below a heading."""
    return f"{heading}\n{textwrap.indent(text, ' ' * _GAP)}"


def format_lines(heading: str, lines: Iterable[str]) -> str:
    """Returns lines in the width of the terminal, indented below a heading; ``(none)`` if there are none."""
    width = count_columns()
    text = "\n".join(wrap(escape_controls(line), width and width - _GAP) for line in lines)
    return format_block(heading, text or "(none)")


def shorten(text: str, width: int) -> str:
    """Shortens a text to a width by omitting its middle. Its end takes up to half, because names differ there."""
    end = min((width - 1) // 2, _END)
    return text if len(text) <= width else f"{text[: width - end - 1]}…{text[len(text) - end :]}"


def cut(text: str, width: int) -> str:
    """Shortens a text to a width by omitting its end."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def wrap(text: str, width: int | None, indent: int | None = None) -> str:
    """Wraps each line of a text to a width, if there is one, and indents continued lines. Paths stay whole."""
    if width is None:
        return text
    lines = ((line, _find_hanging_indent(line) if indent is None else indent) for line in text.split("\n"))
    return "\n".join(part for line, by in lines for part in fold_text(line, max(width, _LEAST), by, keep_paths=True))


def say(text: str, *, err: bool = True) -> None:
    """Prints sentences in the width of the terminal: to stderr, because they are not data, or to stdout."""
    click.echo(wrap(remove_controls(text), count_columns()), err=err)


def shorten_id(digest: str) -> str:
    """Returns a digest; on a terminal only its start, because the commands need no more."""
    return digest if count_columns() is None else digest[:ID_DIGITS]


def check_output(path: Path, *, force: bool) -> None:
    """Checks that a file at the path of an output is empty or one of fusioncache's, so that no other is overwritten.

    Raises:
        click.ClickException: if it is neither, or cannot be read, unless ``force`` is true.
    """
    try:
        if force or not path.is_file():
            return
        with path.open("rb") as file:
            start = file.read(_LOOKED_AT)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read ({error.strerror}): give another path with -o") from error
    if start and not _OWN_FILE.search(start):
        raise click.ClickException(
            f"{path} was not written by fusioncache: give another path with -o, or --force to overwrite it"
        )


def write_file(path: Path, content: bytes, *, force: bool) -> None:
    """Writes an output file, and prints its path.

    Raises:
        click.ClickException: as ``check_output``, or if it cannot be written.
    """
    check_output(path, force=force)
    try:
        with open(path, "wb") as file:
            file.write(content)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written ({error.strerror}): give another path with -o") from error
    say(f"wrote {path}")


def _fit(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> tuple[Sequence[Column], list[list[str]]]:
    """Returns the columns that fit the width, with cells that fit. A folded cell has line breaks.

    The widest column that can be cut or folded gets narrower until all fit.
    """
    widths = _measure([[column.title for column in columns], *rows])
    left, flexible = list(range(len(columns))), [column.cut or column.fold for column in columns]
    least = [min(own, _LEAST) if can else own for can, own in zip(flexible, widths, strict=True)]
    while _total([least[at] for at in left]) > width and any(columns[at].rank for at in left):
        left.remove(max(left, key=lambda at: columns[at].rank))
    narrowed = [at for at in left if flexible[at]]
    while _total([widths[at] for at in left]) > width and any(widths[at] > 1 for at in narrowed):
        widths[max(narrowed, key=lambda at: widths[at])] -= 1
    return [columns[at] for at in left], [[_shrink(columns[at], row[at], widths[at]) for at in left] for row in rows]


def _shrink(column: Column, cell: str, width: int) -> str:
    if column.fold:
        return _fold(cell, width)
    return shorten(cell, width) if column.cut else cell


def _fold(cell: str, width: int) -> str:
    return "\n".join(fold_text(cell, width, _find_hanging_indent(cell) if cell.startswith(" ") else 0))


def _find_hanging_indent(line: str) -> int:
    """Returns the indent of a line's continued lines."""
    return len(line) - len(line.lstrip()) + _GAP


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _measure(rows: Sequence[Sequence[str]]) -> list[int]:
    """Returns the width of the widest line of each column's cells."""
    return [max(len(line) for cell in cells for line in cell.split("\n")) for cells in zip(*rows, strict=True)]


def _write_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Returns each row as aligned text, in several lines if a cell has several."""
    sides = zip(columns, _measure(rows), strict=True)
    write = (" " * _GAP).join(f"{{:{'>' if column.number else '<'}{own}}}" for column, own in sides).format
    blocks = (zip_longest(*(cell.split("\n") for cell in row), fillvalue="") for row in rows)
    texts = ([write(*cells).rstrip() for cells in block] for block in blocks)
    return ["\n".join(line if width is None else cut(line, width) for line in lines) for lines in texts]


@contextmanager
def show_progress(what: str) -> Iterator[Progress]:
    """Shows a progress bar on the terminal, and yields the function that moves it; without one it does nothing."""
    if not _is_terminal(sys.stderr):
        yield lambda done, total: None
        return
    with click.progressbar(length=0, label=what, file=sys.stderr, show_pos=True) as bar:

        def move(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield move


class ThingId(click.ParamType):
    """The start of the ID or name of something in the record or the store.

    Args:
        name: the name of the parameter's type in messages.
        kinds: the kinds of things that it may name.
    """

    def __init__(self, name: str, *kinds: Kind):
        self.name = name
        self._kinds = kinds

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """See click."""
        from fusioncache.cli.things import list_completions
        from fusioncache.store.files import Refusal, StoreError

        try:
            found = list_completions(incomplete, self._kinds)
        except (StoreError, Refusal, OSError):
            return []
        return [CompletionItem(value, help=about) for value, about in found if value.startswith(incomplete)]


RUN_ID = ThingId("run", "run")
"""The start of a run's ID, or a part of its name."""
ANY_ID = ThingId("id", "template", "executable", "program", "family")

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON: exact numbers, seconds and bytes.")
run_option = click.option(
    "--run",
    "run_id",
    type=RUN_ID,
    metavar="ID",
    help="The run, if not the newest: start of its ID or part of its name, see 'stats --runs'.",
)


def _home(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Returns the path with ~ expanded, because shells do not expand it behind an equals sign."""
    return Path(os.path.expanduser(value)) if value else None


directory_option = click.option(
    "--dir",
    "directory",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path),
    callback=_home,
    help="The directory of the store, if not the default.",
)
force_option = click.option("-y", "--force", is_flag=True, help="Overwrite a file that fusioncache did not write.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Remove nothing, and print what would be removed.")


unsigned_option = click.option("--unsigned", is_flag=True, help="Sign no entry of this machine, pack or index.")

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def check_url(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Returns the address of a remote; None if the option is not given.

    Raises:
        click.BadParameter: if it is not an address.
    """
    if value is None:
        return None
    scheme, mark, rest = value.partition("://")
    if not value.strip() or (mark and not scheme) or (mark and not rest and scheme != "memory"):
        raise click.BadParameter(f"{value!r} names no place: give an address such as s3://bucket/folder, or a path")
    if value == "-" or (not mark and _SCHEME.match(value)):
        raise click.BadParameter(
            f"an address is written as in s3://bucket/folder: for a folder of that name say ./{value}"
        )
    return value


_BYTES = {
    **{"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12},
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40},
}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class Measure(click.ParamType):
    """A number with a unit.

    Args:
        name: the measured quantity.
        example: an example for error messages.
        units: the factor of each unit.
    """

    def __init__(self, name: str, example: str, units: Mapping[str, float]):
        self.name = name
        self._example = example
        self._units = units

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See click."""
        found = re.fullmatch(r"(\d{1,99}(?:\.\d+)?)\s*([a-zA-Z]*)", str(value).strip())
        unit = self._units.get(found[2].lower()) if found else None
        if found is None or unit is None:
            self.fail(f"{value!r} is no {self.name} such as {self._example}", param, ctx)
        return float(found[1]) * unit


class Lengths(click.ParamType):
    """Whole numbers separated by commas. ``start:stop:step`` is a range that includes its stop."""

    name = "lengths"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """See click."""
        from fusioncache.accelerators.sizes.scaling import check_lengths

        if isinstance(value, tuple):
            return value
        rows: list[range] = []
        for part in str(value).split(","):
            row = re.fullmatch(r"\s*(\d{1,18})(?::(\d{1,18})(?::(0*[1-9]\d{0,17}))?)?\s*", part, re.ASCII)
            if row is None:
                self.fail(f"{value!r} are no lengths, such as 32:512:32 or 64,96.", param, ctx)
            start, stop, step = (
                int(number or default) for number, default in zip(row.groups(), (0, row[1], 1), strict=True)
            )
            rows.append(range(start, stop + 1, step))
            if not rows[-1]:
                self.fail(f"{part!r} has no lengths, because it stops before it starts.", param, ctx)
        try:
            return check_lengths(chain.from_iterable(rows))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


LENGTHS = Lengths()
"""Sequence lengths."""
BYTES = Measure("size", "500MB or 2GiB", _BYTES)
"""A number of bytes."""
AGE = Measure("age", "12h or 30d", _SECONDS)
"""A number of seconds."""
