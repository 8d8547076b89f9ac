"""The command prune: keeps the store and the record small."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusioncache.cli.json_output import print_json
from fusioncache.cli.options import AGE, BYTES, directory_option, dry_run_option, json_option
from fusioncache.cli.storage import encode_removal, format_removal, is_expected, open_existing, report_store_errors
from fusioncache.humanize import format_bytes, format_count
from fusioncache.observe.record.limits import MAX_AGE, MAX_BYTES
from fusioncache.observe.record.reader import prune as prune_record
from fusioncache.observe.record.schema import record_path

if TYPE_CHECKING:
    from fusioncache.store import SweepResult


@click.command()
@click.option("--max-bytes", type=BYTES, metavar="SIZE", help="The most that may stay, as in 500MB.  [default: 2GiB]")
@click.option("--record-bytes", type=BYTES, metavar="SIZE", help="The same of the record.  [default: 64MiB]")
@click.option("--max-age", type=AGE, metavar="AGE", help="The longest to stay unused, as in 30d.  [default: 90d]")
@dry_run_option
@directory_option
@json_option
def prune(
    max_bytes: float | None,
    record_bytes: float | None,
    max_age: float | None,
    dry_run: bool,
    directory: Path | None,
    as_json: bool,
) -> None:
    """Make the store and the record fit their limits.

    What is too old goes, and then what was not used for longest, until the rest fits; of the record it is the oldest
    runs. Without options it applies the limits that every process applies. The newest run stays, and what another
    version of fusioncache wrote. A running process has loaded what it uses. With --dir only that store is looked at.

    \b
    Examples:
        fusioncache prune
        fusioncache prune --max-bytes 500MB --dry-run
        fusioncache prune --max-age 30d
    """
    record = record_path() if directory is None and record_path().exists() else None
    most = MAX_BYTES if record_bytes is None else int(record_bytes)
    pruned = prune_record(record, most, MAX_AGE if max_age is None else max_age, dry_run=dry_run) if record else None
    path, swept = (None, None) if record and not is_expected(None) else _sweep(directory, max_bytes, max_age, dry_run)
    if as_json:
        sides = {"record": asdict(pruned) if pruned else None, **(encode_removal(swept) if swept else {})}
        print_json({"store": None if path is None else str(path), "dry_run": dry_run, **sides})
        return
    if swept:
        click.echo(format_removal(swept, dry_run))
    if pruned and pruned.runs:
        runs, left = format_count(pruned.runs, "run", "runs"), format_bytes(pruned.bytes_left)
        said = f"would forget {runs}; the record would have" if dry_run else f"forgot {runs}; the record has"
        click.echo(f"{said} {left}")


def _sweep(
    directory: Path | None, max_bytes: float | None, max_age: float | None, dry_run: bool
) -> tuple[Path, SweepResult]:
    """Returns where the store is, and what was removed from it."""
    from fusioncache.store.disk import DiskStore
    from fusioncache.store.store import MAX_AGE, MAX_BYTES

    with report_store_errors():
        store = open_existing(directory)
        age = MAX_AGE if max_age is None else max_age
        disk = DiskStore(store, MAX_BYTES if max_bytes is None else int(max_bytes), age)
        return store.path, disk.plan() if dry_run else disk.sweep()
