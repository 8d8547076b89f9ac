"""The command prune: keeps the store small."""

from __future__ import annotations

from pathlib import Path

import click

from fusioncache.cli.json_output import print_json
from fusioncache.cli.options import AGE, BYTES, directory_option, dry_run_option, json_option
from fusioncache.cli.storage import encode_removal, format_removal, open_existing, report_store_errors


@click.command()
@click.option("--max-bytes", type=BYTES, metavar="SIZE", help="The most that may stay, as in 500MB.  [default: 2GiB]")
@click.option("--max-age", type=AGE, metavar="AGE", help="The longest to stay unused, as in 30d.  [default: 90d]")
@dry_run_option
@directory_option
@json_option
def prune(max_bytes: float | None, max_age: float | None, dry_run: bool, directory: Path | None, as_json: bool) -> None:
    """Make the store fit its limits. What is too old goes, and then what was not used for longest, until it does.

    Without options it applies the limits that every process applies when the store gets too large. What a running
    process uses stays, and so does what another version of fusioncache wrote.

    \b
    Examples:
        fusioncache prune
        fusioncache prune --max-bytes 500MB --dry-run
        fusioncache prune --max-age 30d
    """
    from fusioncache.store.disk import DiskStore
    from fusioncache.store.store import MAX_AGE, MAX_BYTES

    with report_store_errors():
        store = open_existing(directory)
        age = MAX_AGE if max_age is None else max_age
        disk = DiskStore(store, MAX_BYTES if max_bytes is None else int(max_bytes), age)
        swept = disk.plan() if dry_run else disk.sweep()
    if as_json:
        print_json({"store": str(store.path), "dry_run": dry_run, **encode_removal(swept)})
    else:
        click.echo(format_removal(swept, dry_run))
