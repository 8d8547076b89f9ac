"""Push and pull: what was compiled, to another machine and from there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.cli.data import print_json

if TYPE_CHECKING:
    from fusioncache.store import Store
    from fusioncache.store.copying import Copied, Progress


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON: exact numbers, sizes in bytes."),
        click.option("--dry-run", is_flag=True, help="Copy nothing and say what would be copied."),
        click.option(
            "--dir",
            "directory",
            metavar="DIRECTORY",
            type=click.Path(path_type=Path),
            help="The store, if it is not where it is by default.",
        ),
        click.argument("url", callback=_url),
    ):
        command = option(command)
    return command


def _url(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("it is empty")
    return value


@click.command()
@_options
def push(url: str, directory: Path | None, dry_run: bool, as_json: bool) -> None:
    """Copy what was compiled here to URL.

    URL is one of fsspec: s3://bucket/folder, gs://bucket/folder, file:///folder, or a path. What is there is left
    alone. s3 and gs need the packages s3fs and gcsfs.

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

    What is here is left alone, and every byte that comes is verified. What is at URL will run here: use only one that
    nobody can write whom you do not trust. Instead of copying it all, FUSIONCACHE_REMOTE=URL brings what is used.

    \b
    Examples:
        fusioncache pull s3://bucket/fusioncache
        fusioncache pull https://example.org/fusioncache --json
    """
    _copy("pull", url, directory, dry_run, as_json)


def _copy(what: str, url: str, directory: Path | None, dry_run: bool, as_json: bool) -> None:
    from fusioncache.store import RemoteError, StoreError, sharing
    from fusioncache.store.remote import Remote

    remote = Remote(url)
    try:
        store = _store(directory, make=what == "pull")
        with _progress(what) as progress:
            copied = (sharing.push if what == "push" else sharing.pull)(store, remote, progress, dry_run=dry_run)
        store.close()
    except (RemoteError, StoreError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"the store cannot be used: {error}") from error
    if as_json:
        print_json({"command": what, "url": str(remote), "dry_run": dry_run, **_data(copied)})
    else:
        click.echo(_text(what, str(remote), dry_run, copied))
    _say_refused(copied)


def _store(directory: Path | None, *, make: bool) -> Store:
    """The store in a directory.

    Raises:
        StoreError: if there is none, or it cannot be used.
    """
    from fusioncache.store import Store, StoreError, default_path
    from fusioncache.store.directory import open_directory

    path = directory or default_path()
    if not make and not path.exists():
        raise StoreError(f"there is no store in {path}: run a model with fusioncache first")
    open_directory(path)  # which raises where Store.open would go on in memory
    return Store.open(path, remote="")


@contextmanager
def _progress(what: str) -> Iterator[Progress | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _data(copied: Copied) -> dict[str, Any]:
    counts = {field.name: getattr(copied, field.name) for field in fields(copied)}
    return {**counts, "refused": dict(copied.refused)}


def _text(what: str, url: str, dry_run: bool, copied: Copied) -> str:
    did = f"would {what}" if dry_run else f"{what}ed"
    side = "to" if what == "push" else "from"
    counts = f"{_count(copied.entries, 'entry', 'entries')} and {_count(copied.objects, 'object', 'objects')}"
    return f"{did} {counts} ({copied.bytes / 1e6:.1f} MB) {side} {url}; {copied.skipped} were there already"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _say_refused(copied: Copied) -> None:
    """Exits with 1 if anything was left out that is damaged. What another version wrote is not."""
    from fusioncache.store.entry import OTHER_FORMAT

    for reason, number in sorted(copied.refused.items()):
        click.echo(f"left out {number}: {reason}", err=True)
    if copied.refused.keys() - {OTHER_FORMAT}:
        raise click.exceptions.Exit(1)
