"""The command verify: whether the store is what was saved."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusioncache.cli.json_output import print_json
from fusioncache.cli.options import directory_option, json_option
from fusioncache.cli.storage import open_existing, report_aside, report_store_errors
from fusioncache.cli.terminal import Column, print_table, say
from fusioncache.humanize import format_bytes, format_count

if TYPE_CHECKING:
    from fusioncache.store.disk import Audit

_COLUMNS = (Column("what"), Column("id", cut=True), Column("reason", fold=True))


@click.command()
@click.option("--remove", is_flag=True, help="Remove what is damaged. It is compiled again when it is needed.")
@directory_option
@json_option
def verify(remove: bool, directory: Path | None, as_json: bool) -> None:
    """Read everything in the store and list what is damaged.

    Exits with 1 if anything damaged stays. Nothing damaged is ever used: a process that meets it compiles instead.

    \b
    Examples:
        fusioncache verify
        fusioncache verify --remove
    """
    from fusioncache.store.disk import audit, find_aside, remove_damaged

    with report_store_errors():
        path = open_existing(directory).path
        found = audit(path)
        removed = remove_damaged(path, found.damaged) if remove and found.damaged else 0
        found = dataclasses.replace(found, aside=find_aside(path))
    if as_json:
        print_json({"store": str(path), **dataclasses.asdict(found), "removed": removed})
    else:
        _print(path, found, removed)
    if removed < len(found.damaged):
        raise click.exceptions.Exit(1)


def _print(path: Path, found: Audit, removed: int) -> None:
    if found.damaged:
        print_table(_COLUMNS, [(damage.what, damage.id, damage.reason) for damage in found.damaged])
    counts = f"{format_count(found.entries, 'entry', 'entries')} and {format_count(found.objects, 'object', 'objects')}"
    parts = [f"{counts} ({format_bytes(found.bytes)})", f"{len(found.damaged)} damaged"]
    parts += [f"{removed} removed"] if removed else []
    parts += [f"{format_count(found.other, 'entry', 'entries')} of another version"] if found.other else []
    say(", ".join(parts), err=False)
    report_aside(path, found.aside)
