"""The command explain: why two templates are not one."""

from __future__ import annotations

import linecache
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.cache.facts import Line
from fusioncache.cache.record import Record, RecordError
from fusioncache.cache.stats import TemplateStats
from fusioncache.cli.data import print_json
from fusioncache.cli.ids import TemplateId
from fusioncache.cli.options import directory_option, json_option
from fusioncache.cli.pick import ambiguous, pick_template, regions_of
from fusioncache.cli.storage import existing, store_errors
from fusioncache.words import one_line

if TYPE_CHECKING:
    from fusioncache.explain.beside import Row

_PIPED_WIDTH = 160
_MOST_PLACES = 3


@dataclass(frozen=True, slots=True)
class _Known:
    """A template of the record, or a program of the store.

    Attributes:
        where: ``record`` or ``store``.
        digest: of its key.
        name: of the template.
        parts: of its key, by name.
        places: where it comes from, as far as that is known: a module, forward or backward, and a line of the source.
    """

    where: str
    digest: str
    name: str
    parts: Mapping[str, str]
    places: Sequence[tuple[str, Line | None]] = ()


@click.command()
@click.argument("a", metavar="A", type=TemplateId())
@click.argument("b", metavar="[B]", required=False, type=TemplateId())
@click.option("--width", type=click.IntRange(40), help="Columns of the output; by default those of the terminal.")
@directory_option
@json_option
def explain(a: str, b: str | None, width: int | None, directory: Path | None, as_json: bool) -> None:
    """Say why two templates are not one. Which ingredient differs, where, and both values.

    A and B are the starts of digests or names, or the whole, of templates of the record or of programs in the store.
    Without B, A is compared with the nearest of all others.

    One sentence says what differs of itself, and not because something else does. Below it the two stand side by side,
    each op beside the one that takes its place: | marks a line that differs, < and > one that only A or only B has.

    \b
    Examples:
        fusioncache explain residual_tanh_3f9a2c71
        fusioncache explain 3f9a2c 77b1 --width 200
        fusioncache explain 3f9a2c --json
    """
    from fusioncache.explain.beside import rows
    from fusioncache.explain.difference import compare

    one = _find(a, directory)
    other = _nearest(one, directory) if b is None else _find(b, directory)
    difference, lines = compare(one.parts, other.parts), rows(one.parts, other.parts)
    if as_json:
        changes = [asdict(change) for change in difference.changes]
        shown = {"sentence": difference.sentence(), "changes": changes, "rows": [asdict(row) for row in lines]}
        print_json({"a": _data(one), "b": _data(other), **shown})
        return
    click.echo(one_line(difference.sentence()))
    click.echo(f"\nA  {_title(one)}\nB  {_title(other)}\n")
    _print_rows(lines, width or _width())


def _find(prefix: str, directory: Path | None) -> _Known:
    """The template or program that is meant.

    Raises:
        click.ClickException: if there is none, or several.
    """
    record = _record()
    if record and record.find(prefix):
        return _placed(record, pick_template(record, prefix))
    found = [program for program in _programs(directory) if program.digest.startswith(prefix)]
    if len(found) > 1:
        raise ambiguous(prefix, "programs", [program.digest for program in found])
    if not found:
        raise click.ClickException(
            f"no template in the record and no program in the store starts with {prefix!r}: see 'fusioncache ls'"
        )
    return found[0]


def _nearest(known: _Known, directory: Path | None) -> _Known:
    """The one that differs least, of the same place.

    Raises:
        click.ClickException: if there are no others.
    """
    from fusioncache.explain.nearest import nearest

    record = _record() if known.where == "record" else None
    all_: Iterable[_Known] = (
        map(_template, record.with_ingredients(record.find(""))) if record else _programs(directory)
    )
    others = [other for other in all_ if other.digest != known.digest]
    place = nearest(known.parts, [other.parts for other in others])
    if place is not None:
        other = others[place]
        return _placed(record, pick_template(record, other.digest)) if record else other
    raise click.ClickException(
        f"{known.name} is the only one in the {known.where}: there is nothing to compare it with"
    )


def _record() -> Record | None:
    try:
        return Record()
    except RecordError:
        return None


def _template(template: TemplateStats) -> _Known:
    return _Known("record", template.digest, template.name, dict(template.ingredients))


def _placed(record: Record, template: TemplateStats) -> _Known:
    """A template with the places that it comes from, each once."""
    places: dict[tuple[str, Line | None], None] = {}
    for region in regions_of(record, template):
        source = region.source
        line = next((line for line in source.lines if not line.library), next(iter(source.lines), None))
        places[f"{source.module or 'the model'}, {region.trace}", line] = None
    return replace(_template(template), places=tuple(places))


def _programs(directory: Path | None) -> Sequence[_Known]:
    """The programs of the store, if there is one."""
    from fusioncache.explain.parts import unframed
    from fusioncache.store import Store, StoreError

    with store_errors():
        try:
            path = existing(directory).path
        except StoreError:
            if directory is not None:
                raise
            return ()
        store = Store.open(path, remote="")
        texts = store.texts()
        store.close()
    programs = []
    for digest, text in texts.items():
        try:
            programs.append(_Known("store", digest, digest[:12], unframed(text)))
        except ValueError:
            continue  # of another format
    return programs


def _data(known: _Known) -> dict[str, Any]:
    places = [
        {"place": place, "file": line and line.file, "line": line and line.number} for place, line in known.places
    ]
    return {"digest": known.digest, "name": known.name, "in": known.where, "places": places}


def _title(known: _Known) -> str:
    if known.where == "store":
        return f"{known.digest}  (in the store)"
    places = [f"{place}: {_source(line)}" if line else place for place, line in known.places[:_MOST_PLACES]]
    if len(known.places) > _MOST_PLACES:
        places.append(f"and {len(known.places) - _MOST_PLACES} more places")
    return "".join([f"{known.digest}  {one_line(known.name)}", *(f"\n   {one_line(place)}" for place in places)])


def _source(line: Line) -> str:
    """A line of source: where it is, and what it says if it is still there."""
    text = linecache.getline(line.file, line.number).strip()
    return f"{line}  {text}" if text else str(line)


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPED_WIDTH


def _print_rows(rows: Iterable[Row], width: int) -> None:
    from fusioncache.explain.beside import Row, side_by_side

    plain = (Row(one_line(row.a), row.mark, one_line(row.b)) for row in rows)
    lines = list(side_by_side(plain, width))
    if sys.stdout.isatty():
        _print_coloured(lines)
    else:
        click.echo("\n".join(line for line, _ in lines))


def _print_coloured(lines: Iterable[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.text import Text

    from fusioncache.explain.beside import ONLY_A, ONLY_B, OTHER

    styles = {OTHER: "yellow", ONLY_A: "red", ONLY_B: "green"}
    console = Console(highlight=False)
    for line, mark in lines:
        console.print(Text(line, styles.get(mark, "")), soft_wrap=True)
