"""The command clear: removes the store's entries and the record."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusioncache.cli.json_output import print_json
from fusioncache.cli.options import directory_option, dry_run_option, json_option
from fusioncache.cli.storage import encode_removal, format_removal, report_aside, report_store_errors
from fusioncache.record.reader import forget
from fusioncache.record.schema import record_path

if TYPE_CHECKING:
    from fusioncache.store import SweepResult


@click.command()
@click.option("--store", "store_only", is_flag=True, help="Only what was compiled.")
@click.option("--record", "record_only", is_flag=True, help="Only what runs counted.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@directory_option
@json_option
def clear(store_only: bool, record_only: bool, yes: bool, dry_run: bool, directory: Path | None, as_json: bool) -> None:
    """Remove everything from the store, and the record of all runs.

    It asks first. What a running process uses stays, and so does what another version of fusioncache wrote.

    \b
    Examples:
        fusioncache clear --dry-run
        fusioncache clear --store -y
    """
    from fusioncache.store import default_path
    from fusioncache.store.audit import find_aside

    store = None if record_only and not store_only else directory or default_path()
    record = None if store_only and not record_only else record_path()
    with report_store_errors():
        there = [path for path in (store, record) if path and os.path.lexists(path)]
    if not (dry_run or yes):
        what = " and ".join(map(str, there))
        click.confirm(
            f"Remove what is in {what}?" if what else "There is nothing to remove. Go on?", abort=True, err=True
        )
    swept = _clear_store(store, dry_run) if store in there and store else None
    had_record = record is not None and (os.path.lexists(record) if dry_run else forget(record))
    if as_json:
        print_json({"dry_run": dry_run, "store": encode_removal(swept) if swept else None, "record": had_record})
    else:
        _print(swept, record if had_record else None, dry_run)
        if swept and store:
            report_aside(store, find_aside(store))


def _clear_store(path: Path, dry_run: bool) -> SweepResult:
    from fusioncache.store.directory import open_directory
    from fusioncache.store.disk import DiskStore

    with report_store_errors():
        disk = DiskStore(open_directory(path), 0, 0.0)
        return disk.plan() if dry_run else disk.sweep()


def _print(swept: SweepResult | None, record: Path | None, dry_run: bool) -> None:
    if swept:
        click.echo(format_removal(swept, dry_run))
    if record:
        click.echo(f"{'would remove' if dry_run else 'removed'} the record {record}")
    if not (swept or record):
        click.echo("nothing to remove", err=True)
