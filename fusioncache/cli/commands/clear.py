"""The command clear: removes the store's entries and the record."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusioncache.cli.json_output import print_json
from fusioncache.cli.options import directory_option, dry_run_option, json_option
from fusioncache.cli.storage import encode_removal, format_removal, report_aside, report_store_errors
from fusioncache.cli.terminal import count_columns, say, wrap
from fusioncache.observe.record.reader import forget
from fusioncache.observe.record.schema import record_path

if TYPE_CHECKING:
    from fusioncache.store import SweepResult
    from fusioncache.store.disk import DiskStore


@click.command()
@click.option("--store", "store_only", is_flag=True, help="Only the store.")
@click.option("--record", "record_only", is_flag=True, help="Only the record.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@directory_option
@json_option
def clear(store_only: bool, record_only: bool, yes: bool, dry_run: bool, directory: Path | None, as_json: bool) -> None:
    """Remove everything from the store, and the record of all runs.

    It asks first. What another version of fusioncache wrote stays. A running process is not disturbed: what it uses is
    loaded already. Where there is nothing to remove, it says so.

    \b
    Examples:
        fusioncache clear --dry-run
        fusioncache clear --store -y
    """
    from fusioncache.store import default_path
    from fusioncache.store.disk import find_aside

    store = None if record_only and not store_only else directory or default_path()
    record = None if store_only and not record_only else record_path()
    with report_store_errors():
        there = [path for path in (store, record) if path and os.path.lexists(path)]
    planned = _plan(store) if store in there and store else None
    if not planned and store in there:
        there.remove(store)
    if there and not (dry_run or yes):
        question = f"Remove what is in {' and '.join(map(str, there))}?"
        width = count_columns()
        click.confirm(wrap(question, width and width - len(" [y/N]: ")), abort=True, err=True)
    swept = (planned if dry_run else _sweep(store)) if planned and store else None
    had_record = record in there and record is not None and (dry_run or forget(record))
    if as_json:
        print_json({"dry_run": dry_run, "store": encode_removal(swept) if swept else None, "record": had_record})
        return
    _print(swept, record if had_record else None, dry_run)
    if not there:
        places = " and ".join(str(path) for path in (store, record) if path)
        say(f"There is nothing to remove in {places}.")
    if swept and store:
        report_aside(store, find_aside(store))


def _plan(path: Path) -> SweepResult | None:
    """Returns what there is to remove from a store; None if that is nothing."""
    with report_store_errors():
        if path.is_dir() and not any(path.iterdir()):
            return None  # opening it would make it a store
        planned = _open(path).plan()
    return planned if planned.entries or planned.objects or planned.litter or planned.bytes_left else None


def _sweep(path: Path) -> SweepResult:
    with report_store_errors():
        return _open(path).sweep()


def _open(path: Path) -> DiskStore:
    from fusioncache.store.directory import open_directory
    from fusioncache.store.disk import DiskStore

    return DiskStore(open_directory(path), 0, 0.0)


def _print(swept: SweepResult | None, record: Path | None, dry_run: bool) -> None:
    if swept:
        click.echo(format_removal(swept, dry_run))
    if record:
        say(f"{'would remove' if dry_run else 'removed'} the record {record}", err=False)
