"""The command ls: which templates a run had, or what the store has: what was compiled, programs, or families."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from fusioncache.cli.families import KeptFamily, format_lengths, list_families
from fusioncache.cli.json_output import encode_summary, encode_template, print_json
from fusioncache.cli.lookup import find_record, pick_run
from fusioncache.cli.options import directory_option, json_option, run_option
from fusioncache.cli.programs import KeptProgram, list_programs
from fusioncache.cli.storage import list_store
from fusioncache.cli.terminal import Column, count_columns, print_table, say, shorten_id, wrap
from fusioncache.humanize import escape_controls, format_age, format_arities, format_bytes, format_seconds
from fusioncache.observe.record.reader import Listing, Sort
from fusioncache.observe.record.stats import TemplateCounts

if TYPE_CHECKING:
    from fusioncache.store import Entry


_STORE_ORDERS: Mapping[str, Callable[[Any], Any]] = {
    "seconds": lambda one: -one.seconds,
    "name": lambda one: one.name,
    "size": lambda one: -one.size,
}


@click.command()
@run_option
@click.option("--store", "of_store", is_flag=True, help="List the executables of the store instead, newest first.")
@click.option("--programs", "of_models", is_flag=True, help="List the programs instead, newest first.")
@click.option("--families", "of_lengths", is_flag=True, help="List the families of programs instead.")
@click.option("--name", metavar="TEXT", help="Only those with this in their name.")
@click.option("--backend", metavar="NAME", help="Only those of this backend: nvfuser, inductor or eager.")
@click.option("--text", metavar="TEXT", help="Only templates with this in an ingredient of their key.")
@click.option(
    "--sort", type=click.Choice(get_args(Sort)), help="What comes first: the largest number, or the first name."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="NUMBER", help="At most that many.")
@click.option("--wide", is_flag=True, help="Leave nothing out, however wide the terminal is.")
@directory_option
@json_option
def ls(
    run_id: str | None,
    of_store: bool,
    of_models: bool,
    of_lengths: bool,
    sort: Sort | None,
    limit: int | None,
    as_json: bool,
    **only: Any,
) -> None:
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
    kept = "--families" if of_lengths else "--programs" if of_models else None
    if kept or of_store:
        _refuse(kept or "--store", run_id, only["text"], sort)
    if kept:
        if of_store or only["backend"] or (of_models and of_lengths):
            raise click.UsageError(
                f"{kept} lists what Thunder made of models: leave out --store, --backend and the other list."
            )
        if of_lengths and sort == "seconds":
            raise click.UsageError("--families has no seconds: sort by name or size.")
        listed, print_kept = _Filter(only["name"], None, sort, limit), _list_lengths if of_lengths else _list_kept
        print_kept(only["directory"], listed, as_json=as_json, wide=only["wide"])
    elif of_store:
        listed = _Filter(only["name"], only["backend"], sort, limit)
        _list_executables(only["directory"], listed, as_json=as_json, wide=only["wide"])
    elif only["directory"]:
        raise click.UsageError("--dir names a store: use it with --store, --programs or --families.")
    else:
        most = None if limit is None else min(limit, sys.maxsize)  # which is what sqlite can count
        listing = Listing(only["name"], only["backend"], only["text"], sort or "seconds", most)
        _list_templates(run_id, listing, sort, as_json=as_json, wide=only["wide"])


def _refuse(what: str, run_id: str | None, text: str | None, sort: Sort | None) -> None:
    """Refuses the options that are about templates."""
    given = {"--run": run_id, "--text": text, f"--sort {sort}": sort if sort not in _STORE_ORDERS else None}
    for said, value in given.items():
        if value is not None:
            raise click.UsageError(f"{said} is about templates, and {what} lists no templates: leave one of them out.")


def _list_templates(run_id: str | None, listing: Listing, sort: Sort | None, *, as_json: bool, wide: bool) -> None:
    record = find_record(run_id)
    if record is None:
        _list_unrecorded(listing, sort, as_json=as_json, wide=wide)
        return
    run = pick_run(record, run_id)
    found = record.templates(run.id, listing)
    if as_json:
        print_json({"run": run.id, "templates": [encode_template(template) for template in found]})
    else:
        print_templates(found, wide=wide)
    if found:
        return
    if all_ := record.templates(run.id):
        say(f"None of the {len(all_)} templates of run {shorten_id(run.id)} matches.")
    else:
        say(f"Run {shorten_id(run.id)} has no templates: 'fusioncache stats' says what was bypassed and why.")


def _list_unrecorded(listing: Listing, sort: Sort | None, *, as_json: bool, wide: bool) -> None:
    """Lists what the store has where no run is on record, as on a machine that only pulled."""
    given = {"--text": listing.text, f"--sort {sort}": sort if sort not in _STORE_ORDERS else None}
    for said, value in given.items():
        if value is not None:
            raise click.UsageError(f"{said} is about templates of a run, and no run is on record here: leave it out.")
    path, executables, refused = list_store(None)
    found = _Filter(listing.name, listing.backend, sort, listing.limit).of(executables)
    if as_json:
        rows = [_executable_data(one, refused) for one in found]
        print_json({"run": None, "templates": [], "store": str(path), "executables": rows})
        return
    print_executables(found, refused, wide=wide)
    say(
        "No run is on record here, so there are no templates to list. These are the executables of the store; "
        "'fusioncache ls --programs' lists its programs."
    )


@dataclass(frozen=True, slots=True)
class _Filter:
    """Which executables or programs, and in which order."""

    name: str | None
    backend: str | None
    sort: str | None
    limit: int | None

    def of(self, executables: Sequence[Entry]) -> Sequence[Entry]:
        """Returns those of these executables that are meant."""
        return self.arrange([one for one in executables if self.backend in (None, one.backend)])

    def arrange[T: Entry | KeptProgram | KeptFamily](self, listed: Sequence[T]) -> Sequence[T]:
        """Returns those of these that have the name, in their order."""
        found = [one for one in listed if (self.name or "") in one.name]
        return (sorted(found, key=_STORE_ORDERS[self.sort]) if self.sort else found)[: self.limit]


def _list_executables(directory: Path | None, wanted: _Filter, *, as_json: bool, wide: bool) -> None:
    path, executables, refused = list_store(directory)
    found = wanted.of(executables)
    if as_json:
        print_json({"store": str(path), "executables": [_executable_data(one, refused) for one in found]})
    else:
        print_executables(found, refused, wide=wide)
    if not found:
        rest = "; none matches" if executables else ""
        say(f"{path} has {len(executables) or 'no'} executables{rest}.")


def _list_kept(directory: Path | None, wanted: _Filter, *, as_json: bool, wide: bool) -> None:
    path, programs = list_programs(directory)
    found = wanted.arrange(programs)
    if as_json:
        print_json({"store": str(path), "programs": [_kept_data(program) for program in found]})
    else:
        now = time.time()
        print_table(_KEPT_COLUMNS, [_kept_row(program, now) for program in found], wide=wide, most=_MOST_COLUMNS)
    if not found:
        say(f"{path} has {len(programs) or 'no'} programs{'; none matches' if programs else ''}.")


def _list_lengths(directory: Path | None, wanted: _Filter, *, as_json: bool, wide: bool) -> None:
    path, families = list_families(directory)
    found = wanted.arrange(families)
    if as_json:
        print_json({"store": str(path), "families": [family.data() for family in found]})
    else:
        now = time.time()
        print_table(_FAMILY_COLUMNS, [_family_row(family, now) for family in found], wide=wide)
    if not found:
        say(f"{path} has {len(families) or 'no'} families{'; none matches' if families else ''}.")


def _kept_data(program: KeptProgram) -> dict[str, Any]:
    return {**program.data(), "templates": program.find_templates()}


def _executable_data(executable: Entry, refused: Mapping[str, str]) -> dict[str, Any]:
    return {**encode_summary(executable), "refused": refused.get(f"{executable.digest}.{executable.backend}")}


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
_EXECUTABLE_COLUMNS = (
    _ID,
    Column("name", cut=True),
    Column("backend"),
    Column("size", number=True),
    Column("age", number=True, rank=1),
    Column("seconds", number=True),
)
_MOST_COLUMNS = 100
"""The width of a list of programs where that of the terminal is not known: a model has a dozen inputs."""
_KEPT_COLUMN = Column("stored")
_KEPT_COLUMNS = (
    Column("id"),
    Column("name", cut=True),
    Column("inputs", cut=True, rank=2),
    Column("templates", number=True, rank=1),
    Column("size", number=True),
    Column("age", number=True, rank=4),
    Column("used", number=True, rank=3),
    Column("seconds", number=True),
)


_FAMILY_COLUMNS = (
    Column("id"),
    Column("name", cut=True),
    Column("lengths", cut=True),
    Column("guards", number=True, rank=1),
    Column("size", number=True),
    Column("age", number=True, rank=3),
    Column("used", number=True, rank=2),
)


def print_templates(templates: Sequence[TemplateCounts], *, wide: bool = False) -> None:
    """Prints a table of templates. What does not fit is left out, unless it is to be wide."""
    print_table(_TEMPLATE_COLUMNS, [_template_row(template) for template in templates], wide=wide)


def print_executables(executables: Sequence[Entry], refused: Mapping[str, str], *, wide: bool = False) -> None:
    """Prints a table of what is in a store. What does not fit is left out, unless it is to be wide.

    Args:
        executables: what to print.
        refused: of those that stand for something that was not kept, why, by digest and backend.
        wide: whether to leave nothing out.
    """
    now = time.time()
    rows = [_executable_row(executable, now) for executable in executables]
    reasons = [refused.get(f"{executable.digest}.{executable.backend}") for executable in executables]
    if not any(reasons):
        print_table(_EXECUTABLE_COLUMNS, rows, wide=wide)
        return
    marked = [(*row, "no" if reason else "yes") for row, reason in zip(rows, reasons, strict=True)]
    print_table((*_EXECUTABLE_COLUMNS, _KEPT_COLUMN), marked, wide=wide)
    click.echo()
    for reason, number in Counter(filter(None, reasons)).most_common():
        why = f"each process compiles them: {escape_controls(reason)}"
        text = f"{number} of {len(executables)} cannot be stored, so {why}"
        click.echo(wrap(text, None if wide else count_columns()))


def _template_row(template: TemplateCounts) -> tuple[str, ...]:
    arities, seconds = format_arities(template.arities), format_seconds(template.compile_seconds)
    counts = (template.ops, template.regions, template.hits, arities, template.compiles)
    return (template.digest, template.name, *map(str, counts), seconds)


def _executable_row(executable: Entry, now: float) -> tuple[str, ...]:
    name, seconds = escape_controls(executable.name) or "-", format_seconds(executable.seconds)
    return (
        executable.digest,
        name,
        executable.backend,
        format_bytes(executable.size),
        format_age(now - executable.created),
        seconds,
    )


def _kept_row(program: KeptProgram, now: float) -> tuple[str, ...]:
    templates = program.find_templates()
    ages = (format_age(now - program.entry.created), format_age(now - program.used))
    return (
        program.id,
        escape_controls(program.name) or "-",
        escape_controls(program.inputs) or "-",
        "damaged" if templates is None else str(len(templates)),
        format_bytes(program.size),
        *ages,
        format_seconds(program.seconds),
    )


def _family_row(family: KeptFamily, now: float) -> tuple[str, ...]:
    outline = family.find_outline()
    ages = (format_age(now - family.entry.created), format_age(now - family.used))
    return (
        family.id,
        escape_controls(family.name) or "-",
        format_lengths(outline.lengths) if outline else "damaged",
        str(len(outline.guards)) if outline else "-",
        format_bytes(family.size),
        *ages,
    )
