"""Push and pull: what was compiled, to another machine and from there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.cli.json_output import print_json
from fusioncache.cli.options import directory_option, json_option
from fusioncache.cli.storage import open_store, report_store_errors
from fusioncache.cli.terminal import say, show_progress
from fusioncache.humanize import escape_controls, format_bytes, format_count

if TYPE_CHECKING:
    from fusioncache.store.remote import CopyResult, Remote


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        json_option,
        click.option("--dry-run", is_flag=True, help="Copy nothing and say what would be copied."),
        directory_option,
        click.argument("url", callback=_url),
    ):
        command = option(command)
    return command


def _url(context: click.Context, parameter: click.Parameter, value: str) -> str:
    scheme, mark, rest = value.partition("://")
    if not value.strip() or (mark and not scheme) or (mark and not rest and scheme != "memory"):
        raise click.BadParameter(f"{value!r} names no place: give an address such as s3://bucket/folder, or a path")
    if value == "-":
        raise click.BadParameter("a store is a folder, so - cannot be one: for a folder of that name say ./-")
    return value


@click.command()
@_options
def push(url: str, directory: Path | None, dry_run: bool, as_json: bool) -> None:
    """Copy what was compiled here to URL.

    URL is one of fsspec: s3://bucket/folder, gs://bucket/folder, file:///folder, or a path. Entries that
    are there already stay as they are. The last folder of URL is made if needed; the folder above it has to exist.

    What talks to s3 and gs is installed by pip install "fusioncache[s3]" and "fusioncache[gs]".

    \b
    Examples:
        fusioncache push s3://bucket/fusioncache
        fusioncache push --dry-run /mnt/shared/fusioncache
    """
    _copy("push", url, directory, dry_run, as_json)


@click.command()
@_options
def pull(url: str, directory: Path | None, dry_run: bool, as_json: bool) -> None:
    """Copy what was compiled elsewhere from URL.

    Entries that are here already stay as they are, and every byte that comes is verified. What is at URL will run here:
    pull only from a place that only people you trust can write. Instead of copying all of it, FUSIONCACHE_REMOTE=URL
    brings what a process needs. 'fusioncache stats' and 'fusioncache ls' show what came.

    A listing of more than 500,000 files or 128 MiB is not read to its end, and an entry of more than 256 MiB is left
    out. After an hour it ends; what came by then stays, and the next pull goes on from there.

    URL is one that 'fusioncache push' takes, or http://host/folder where the server lists its folders: that is read by
    what pip install "fusioncache[http]" installs.

    \b
    Examples:
        fusioncache pull s3://bucket/fusioncache
        fusioncache pull https://example.org/fusioncache --json
    """
    _copy("pull", url, directory, dry_run, as_json)


def _copy(what: str, url: str, directory: Path | None, dry_run: bool, as_json: bool) -> None:
    from fusioncache.store import remote as sharing
    from fusioncache.store.remote import Remote

    remote = Remote(url)
    with report_store_errors():
        if what == "pull":
            _require_before_making(directory, remote)
        store = open_store(directory, make=what == "pull")
        with show_progress(what) as progress:
            copied = (sharing.push if what == "push" else sharing.pull)(store, remote, progress, dry_run=dry_run)
    if as_json:
        print_json({"command": what, "url": str(remote), "dry_run": dry_run, **_data(copied)})
    else:
        say(_text(what, str(remote), dry_run, copied), err=False)
    _say_refused(copied)


def _require_before_making(directory: Path | None, remote: Remote) -> None:
    """Makes sure that no store is made for the sake of a wrong address."""
    from fusioncache.store import default_path
    from fusioncache.store.remote import list_remote

    path = directory or default_path()
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        list_remote(remote, make=False)


def _data(copied: CopyResult) -> dict[str, Any]:
    counts = {field.name: getattr(copied, field.name) for field in fields(copied)}
    return {**counts, "refused": dict(copied.refused)}


def _text(what: str, url: str, dry_run: bool, copied: CopyResult) -> str:
    where = escape_controls(url)
    if not (copied.entries or copied.skipped or copied.refused):
        return f"nothing to {what}: " + ("the store has no entries" if what == "push" else f"{where} has no entries")
    did = f"would {what}" if dry_run else f"{what}ed"
    side = "to" if what == "push" else "from"
    counts = (
        f"{format_count(copied.entries, 'entry', 'entries')} and {format_count(copied.objects, 'object', 'objects')}"
    )
    return f"{did} {counts} ({format_bytes(copied.bytes)}) {side} {where}; {copied.skipped} were there already"


def _say_refused(copied: CopyResult) -> None:
    """Exits with 1 if anything was left out that is damaged. What another version wrote is not."""
    from fusioncache.store.entry import OTHER_FORMAT

    for reason, number in sorted(copied.refused.items()):
        say(f"left out {number}: {reason}")
    if copied.refused.keys() - {OTHER_FORMAT}:
        raise click.exceptions.Exit(1)
