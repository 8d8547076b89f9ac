"""The command explain: why a run compiled, and why two templates, or two programs, are not one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.cli.executables import find_reasons_not_kept
from fusioncache.cli.json_output import print_json
from fusioncache.cli.lookup import (
    SourceLocation,
    find_locations,
    find_regions,
    format_locations,
    make_ambiguity_error,
    pick_run,
    pick_template,
)
from fusioncache.cli.misses import print_misses
from fusioncache.cli.options import TemplateId, directory_option, json_option, run_option
from fusioncache.cli.program_comparison import explain_program
from fusioncache.cli.programs import find_programs, pick_one
from fusioncache.cli.storage import open_existing, read_refusals, report_store_errors
from fusioncache.humanize import escape_controls
from fusioncache.record.reader import RecordReader
from fusioncache.record.schema import RecordError
from fusioncache.record.stats import TemplateStats

if TYPE_CHECKING:
    from fusioncache.explain.side_by_side import Row

_PIPED_WIDTH = 160


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is compared: a template of the record, or an executable of the store.

    Attributes:
        where: ``record`` or ``store``.
        digest: of its key.
        name: of the template.
        texts: of the ingredients of its key, by name.
        locations: where it comes from, as far as that is known.
        not_kept: why the store cannot keep what was compiled for it, if it cannot.
    """

    where: str
    digest: str
    name: str
    texts: Mapping[str, str]
    locations: Sequence[SourceLocation] = ()
    not_kept: Sequence[str] = ()


@click.command()
@click.argument("a", metavar="[A]", required=False, type=TemplateId())
@click.argument("b", metavar="[B]", required=False, type=TemplateId())
@click.option("--width", type=click.IntRange(40), help="Columns of the output; by default those of the terminal.")
@run_option
@directory_option
@json_option
def explain(
    a: str | None, b: str | None, width: int | None, run_id: str | None, directory: Path | None, as_json: bool
) -> None:
    """Say why a run compiled, or why two templates, or two programs, are not one.

    Without A, it lists what the newest run compiled. One sentence for each template says what keeps it from its
    nearest, of those that were known before; a line at the end counts what was loaded.

    A and B are the starts of digests or names, or the whole, of templates of the record or of executables in the store.
    Without B, A is compared with the nearest of all others. One sentence says what differs of itself, and not because
    something else does. Below it the two stand side by side, each op beside the one that takes its place: | marks a
    line that differs, < and > one that only A or only B has.

    A and B may also be programs, as 'ls --programs' shows them; a model's name is its newest. What differs is
    a line of their keys, or something that Thunder read while it traced.

    \b
    Examples:
        fusioncache explain
        fusioncache explain --run 5f3a
        fusioncache explain residual_tanh_3f9a2c71
        fusioncache explain 3f9a2c 77b1 --width 200
        fusioncache explain Llama
        fusioncache explain 3f9a2c --json
    """
    if a is None:
        if width is not None:
            raise click.UsageError("--width is for two templates side by side: give the id of one.")
        record = RecordReader()
        print_misses(record, pick_run(record, run_id), directory, as_json=as_json)
    elif run_id is not None:
        raise click.UsageError("--run lists what a run compiled, and an id names one template: give only one of them.")
    else:
        _compare(a, b, width, directory, as_json)


def _compare(a: str, b: str | None, width: int | None, directory: Path | None, as_json: bool) -> None:
    from fusioncache.explain.difference import compare
    from fusioncache.explain.side_by_side import align

    derived = () if _is_compiled(a, directory) else find_programs(a, directory)
    if derived:
        # The newest is what a job has just derived, and why it did is the question.
        program = derived[0] if {one.name for one in derived} == {a} else pick_one(a, derived)
        explain_program(program, b, directory, as_json=as_json)
        return
    one = _find(a, directory)
    other = _find_neighbour(one, directory) if b is None else _find(b, directory)
    difference, lines = compare(one.texts, other.texts), align(one.texts, other.texts)
    if as_json:
        changes = [change.data() for change in difference.changes]
        shown = {"sentence": difference.sentence(), "changes": changes, "rows": [asdict(row) for row in lines]}
        print_json({"a": _data(one), "b": _data(other), **shown})
        return
    click.echo(escape_controls(difference.sentence()))
    click.echo(f"\nA  {_title(one)}\nB  {_title(other)}\n")
    _print_rows(lines, width or _width())


def _find(prefix: str, directory: Path | None) -> _Subject:
    """Returns the template or executable that is meant.

    Raises:
        click.ClickException: if there is none, or several.
    """
    record = _record()
    if record and record.find(prefix):
        return _complete(record, pick_template(record, prefix), directory)
    found = [executable for executable in _executables(directory) if executable.digest.startswith(prefix)]
    if len(found) > 1:
        raise make_ambiguity_error(prefix, "executables", [executable.digest for executable in found])
    if not found:
        raise click.ClickException(
            f"no template in the record and no executable in the store starts with {prefix!r}: see 'fusioncache ls' "
            "and 'fusioncache ls --store'"
        )
    return found[0]


def _is_compiled(prefix: str, directory: Path | None) -> bool:
    """Returns whether a template of the record, or what was compiled for one, may be meant."""
    record = _record()
    if record and record.find(prefix):
        return True
    return any(executable.digest.startswith(prefix) for executable in _executables(directory))


def _find_neighbour(subject: _Subject, directory: Path | None) -> _Subject:
    """Returns what differs least, of the same record or store.

    Raises:
        click.ClickException: if there are no others.
    """
    from fusioncache.explain.miss import find_nearest

    record = _record() if subject.where == "record" else None
    all_: Iterable[_Subject] = (
        map(_template, record.add_ingredients(record.find(""))) if record else _executables(directory)
    )
    others = [other for other in all_ if other.digest != subject.digest]
    position = find_nearest(subject.texts, [other.texts for other in others])
    if position is not None:
        other = others[position]
        return _complete(record, pick_template(record, other.digest), directory) if record else other
    raise click.ClickException(
        f"{subject.name} is the only one in the {subject.where}: there is nothing to compare it with"
    )


def _record() -> RecordReader | None:
    try:
        return RecordReader()
    except RecordError:
        return None


def _template(template: TemplateStats) -> _Subject:
    return _Subject("record", template.digest, template.name, dict(template.ingredients))


def _complete(record: RecordReader, template: TemplateStats, directory: Path | None) -> _Subject:
    """Returns a template with all that is known of it."""
    (reasons,) = find_reasons_not_kept([template], directory)
    return replace(
        _template(template), locations=find_locations(find_regions(record, template)), not_kept=sorted(reasons)
    )


def _executables(directory: Path | None) -> Sequence[_Subject]:
    """Returns the executables of the store, if there is one."""
    from fusioncache.ir.key_text import read_key
    from fusioncache.store import Store, StoreError
    from fusioncache.store.slots import is_compiled

    with report_store_errors():
        try:
            path = open_existing(directory).path
        except StoreError:
            if directory is not None:
                raise
            return ()
        store = Store.open(path, remote="")
        texts, notes = store.texts(), read_refusals(store)
        derived = {entry.digest for entry in store.entries() if not is_compiled(entry.backend)}
        store.close()
    reasons = {id_.partition(".")[0]: (reason,) for id_, reason in notes.items()}
    executables = []
    for digest, text in texts.items():
        if digest in derived:
            continue
        try:
            executables.append(_Subject("store", digest, digest[:12], read_key(text), (), reasons.get(digest, ())))
        except ValueError:
            continue  # of another format
    return executables


def _data(subject: _Subject) -> dict[str, Any]:
    places = [location.data() for location in subject.locations]
    about = {"digest": subject.digest, "name": subject.name, "in": subject.where}
    return {**about, "places": places, "not_kept": subject.not_kept}


def _title(subject: _Subject) -> str:
    head = f"{subject.digest}  {'(in the store)' if subject.where == 'store' else subject.name}"
    about = [*format_locations(subject.locations), *(f"not kept: {reason}" for reason in subject.not_kept)]
    return "\n   ".join(map(escape_controls, [head, *about]))


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPED_WIDTH


def _print_rows(rows: Iterable[Row], width: int) -> None:
    from fusioncache.explain.side_by_side import Row, write_rows

    printable = (Row(escape_controls(row.a), row.mark, escape_controls(row.b)) for row in rows)
    lines = list(write_rows(printable, width))
    if sys.stdout.isatty():
        _print_coloured(lines)
    else:
        click.echo("\n".join(line for line, _ in lines))


def _print_coloured(lines: Iterable[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.text import Text

    from fusioncache.explain.side_by_side import ONLY_A, ONLY_B, OTHER

    styles = {OTHER: "yellow", ONLY_A: "red", ONLY_B: "green"}
    console = Console(highlight=False)
    for line, mark in lines:
        console.print(Text(line, styles.get(mark, "")), soft_wrap=True)
