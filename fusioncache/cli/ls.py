"""The command ls: which templates a run had, or what the store has: executables, programs, or families."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from fusioncache.cli.ids import find_record, pick_run
from fusioncache.cli.output import (
    Column,
    count_columns,
    encode_fields,
    format_cell,
    format_table,
    print_json,
    say,
    shorten_id,
    wrap,
)
from fusioncache.cli.parameters import directory_option, json_option, run_option
from fusioncache.cli.stored import StoredKind, format_lengths, list_stored
from fusioncache.humanize import escape_controls, format_age, format_arities, format_bytes, format_seconds
from fusioncache.ir.keys import BACKEND
from fusioncache.observe.record.reader import RecordReader
from fusioncache.observe.record.stats import TemplateStats

_SORTED_BY = {"seconds": "compile_seconds", "regions": "regions", "hits": "hits", "name": "name", "size": "ops"}
"""The fields of templates that can be sorted by."""
_STORED_BY = ("seconds", "name", "size")
"""Those of what a store has."""
_LISTS: Mapping[str, StoredKind] = {"--store": "executable", "--programs": "program", "--families": "family"}
"""What each option lists."""


def _count(values: Sequence[Any] | None) -> str:
    return "damaged" if values is None else str(len(values))


def _format_lengths(lengths: Sequence[tuple[int, ...]] | None) -> str:
    return "damaged" if lengths is None else format_cell(format_lengths(lengths))


def _format_age(since: float) -> str:
    return format_age(time.time() - since)


_ID, _NAME = Column("id", key="digest", id=True), Column("name", cut=True)
_SECONDS = Column("seconds", format_seconds, number=True)
_SIZE = Column("size", format_bytes, number=True)
_TEMPLATE_COLUMNS = (
    _ID,
    _NAME,
    Column("ops", number=True, rank=2),
    Column("regions", number=True),
    Column("hits", number=True),
    Column("arities", format_arities, cut=True, rank=1),
    Column("compiles", number=True, rank=3),
    Column("seconds", format_seconds, key="compile_seconds", number=True),
)
_STORED_COLUMNS: Mapping[StoredKind, tuple[Column, ...]] = {
    "executable": (
        _ID,
        _NAME,
        Column("backend"),
        _SIZE,
        Column("age", _format_age, "created", number=True, rank=1),
        _SECONDS,
        Column("stored", lambda reason: "no" if reason else "yes", key="refused"),
    ),
    "program": (
        Column("id"),
        _NAME,
        Column("inputs", cut=True, rank=2),
        Column("templates", _count, number=True, rank=1),
        _SIZE,
        Column("age", _format_age, "created", number=True, rank=4),
        Column("used", _format_age, number=True, rank=3),
        _SECONDS,
    ),
    "family": (
        Column("id"),
        _NAME,
        Column("lengths", _format_lengths, cut=True),
        Column("guards", _count, number=True, rank=1),
        _SIZE,
        Column("age", _format_age, "created", number=True, rank=3),
        Column("used", _format_age, number=True, rank=2),
    ),
}
_PLURALS: Mapping[StoredKind, str] = {"executable": "executables", "program": "programs", "family": "families"}
_MOST_COLUMNS = 100
"""The width of a list of programs where that of the terminal is not known: a model has a dozen inputs."""


@click.command()
@run_option
@click.option("--store", is_flag=True, help="List the executables of the store instead, newest first.")
@click.option("--programs", is_flag=True, help="List the programs instead, newest first.")
@click.option("--families", is_flag=True, help="List the families of programs instead.")
@click.option("--name", metavar="TEXT", help="Only those with this in their name.")
@click.option("--backend", metavar="NAME", help="Only those of this backend: nvfuser, inductor or eager.")
@click.option("--text", metavar="TEXT", help="Only templates with this in an ingredient of their key.")
@click.option(
    "--sort", type=click.Choice(list(_SORTED_BY)), help="What comes first: the largest number, or the first name."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="NUMBER", help="At most that many.")
@click.option("--wide", is_flag=True, help="Leave nothing out, however wide the terminal is.")
@directory_option
@json_option
def ls(run_id: str | None, directory: Path | None, as_json: bool, wide: bool, **only: Any) -> None:
    """List the templates of the newest run, those that took longest to compile first.

    Arities are the numbers of residual terms (terms of a sum of any length) that regions had: 1-31 is each from 1 to
    31, a slash stands between the chains of a template that has several, and - means no chain. The size of a template
    is its number of operations (ops).

    --store lists the executables of the store: what a compiler made of a template for one layout of its inputs. A
    template with residual terms is compiled in parts, which other templates share. Some entries are only notes that an
    executable cannot be stored; the reason stands below the list.

    --programs lists the programs of the store: what Thunder makes of a model for one kind of input. A process that
    finds one there does not trace. The seconds are those that tracing took.

    --families lists families: programs that differ in lengths only. A process fills in the program of a further length
    from them.

    Without a record of runs, as after a pull, it lists the executables of the store.

    A terminal gets what fits it: the start of each ID, which is all that the commands need, and names without their
    middle. Where the output is no terminal, the list of programs has 100 columns. --wide leaves nothing out. IDs work
    in every command that takes one.

    \b
    Examples:
        fusioncache ls
        fusioncache ls --name residual --sort hits --limit 10
        fusioncache ls --text prims.exp
        fusioncache ls --run 5f3a --json
        fusioncache ls --store --sort size
        fusioncache ls --programs
        fusioncache ls --families
    """
    given = [option for option in _LISTS if only[option[2:]]]
    if directory and not given:
        raise click.UsageError("--dir names a store: use it with --store, --programs or --families.")
    if record := None if given else find_record(run_id):
        _list_templates(record, run_id, only, as_json=as_json, wide=wide)
    else:
        _refuse(given, run_id, only)
        _list_stored(given, directory, only, as_json=as_json, wide=wide)


def _list_stored(
    given: Sequence[str], directory: Path | None, only: Mapping[str, Any], *, as_json: bool, wide: bool
) -> None:
    kind = _LISTS[given[0]] if given else "executable"
    path, stored = list_stored(directory, kind)
    found = [one for one in stored if only["backend"] in (None, one.entry.backend)]
    rows = [one.to_dict() for one in _select(found, only, only["sort"])]
    if as_json:
        print_json({**({} if given else {"run": None, "templates": []}), "store": str(path), _PLURALS[kind]: rows})
    else:
        _print_stored(kind, rows, wide=wide)
    if not given and not as_json:
        say(
            "No run is on record here, so there are no templates to list. These are the executables of the store; "
            "'fusioncache ls --programs' lists its programs."
        )
    elif not rows:
        say(f"{path} has {len(stored) or 'no'} {_PLURALS[kind]}{'; none matches' if stored else ''}.")


def _select(found: Sequence[Any], only: Mapping[str, Any], field: str | None) -> list[Any]:
    """Returns those that have a text in their names, sorted by a field: the largest number first, or the first name."""
    named = [one for one in found if (only["name"] or "") in one.name]
    ordered = sorted(named, key=attrgetter(field), reverse=field != "name") if field else named
    return ordered[: only["limit"]]


def _refuse(given: Sequence[str], run_id: str | None, only: Mapping[str, Any]) -> None:
    """Refuses options that are not about the list of what a store has.

    Raises:
        click.UsageError: if there is one.
    """
    sort = only["sort"]
    of_templates = {"--run": run_id, "--text": only["text"], f"--sort {sort}": sort if sort not in _STORED_BY else None}
    for said in (option for option, value in of_templates.items() if value is not None):
        if not given:
            raise click.UsageError(f"{said} is about templates of a run, and no run is on record here: leave it out.")
        listed = given[-1]
        raise click.UsageError(f"{said} is about templates, and {listed} lists no templates: leave one of them out.")
    if len(given) > 1 or (only["backend"] and given and given != ["--store"]):
        raise click.UsageError(
            f"{given[-1]} lists what Thunder made of models: leave out --store, --backend and the other list."
        )
    if given == ["--families"] and sort == "seconds":
        raise click.UsageError("--families has no seconds: sort by name or size.")


def _list_templates(
    record: RecordReader, run_id: str | None, only: Mapping[str, Any], *, as_json: bool, wide: bool
) -> None:
    run = pick_run(record, run_id)
    all_ = fitting = record.templates(run.id)
    if only["backend"] is not None or only["text"] is not None:
        digests = {each.digest for each in record.add_ingredients(all_) if _has_texts(each, only)}
        fitting = tuple(each for each in all_ if each.digest in digests)
    found = _select(fitting, only, _SORTED_BY[only["sort"] or "seconds"])
    if as_json:
        print_json({"run": run.id, "templates": found})
    else:
        click.echo(format_table(_TEMPLATE_COLUMNS, [encode_fields(template) for template in found], wide=wide))
    if not found and all_:
        say(f"None of the {len(all_)} templates of run {shorten_id(run.id)} matches.")
    elif not found:
        say(f"Run {shorten_id(run.id)} has no templates: 'fusioncache stats' says what was bypassed and why.")


def _has_texts(template: TemplateStats, only: Mapping[str, Any]) -> bool:
    """True if the ingredients of a template's key have the backend and the text that are asked for."""
    texts, text = template.ingredients, only["text"]
    is_of_backend = only["backend"] is None or (BACKEND, only["backend"]) in texts
    return is_of_backend and (text is None or any(text in each for _, each in texts))


def _print_stored(kind: StoredKind, rows: Sequence[Mapping[str, Any]], *, wide: bool) -> None:
    """Prints a table of what a store has, and below it why some of it cannot be stored."""
    reasons = Counter(row["refused"] for row in rows if row.get("refused"))
    columns = _STORED_COLUMNS[kind] if reasons or kind != "executable" else _STORED_COLUMNS[kind][:-1]
    click.echo(format_table(columns, rows, wide=wide, most=_MOST_COLUMNS if kind == "program" else None))
    width, lead = None if wide else count_columns(), "\n"
    for reason, number in reasons.most_common():
        why = f"cannot be stored, so each process compiles them: {escape_controls(reason)}"
        click.echo(lead + wrap(f"{number} of {len(rows)} {why}", width))
        lead = ""
