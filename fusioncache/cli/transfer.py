"""The commands push, pull and warm: what was compiled, to another machine, from there, and before a job needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusioncache.cli.output import encode_fields, print_json, say, show_progress
from fusioncache.cli.parameters import directory_option, json_option
from fusioncache.cli.stored import format_contents, list_stored, open_existing, open_store, report_store_errors
from fusioncache.humanize import format_bytes, format_count
from fusioncache.process.settings import STORE
from fusioncache.store import Store, default_path
from fusioncache.store.entry import OTHER_FORMAT

if TYPE_CHECKING:
    from fusioncache.accelerators.precompile.warm import Warmed
    from fusioncache.store.remote import CopyResult, Remote

_MOST_JOBS = 4
_STDERR = 2


def _check_url(context: click.Context, parameter: click.Parameter, value: str) -> str:
    scheme, mark, rest = value.partition("://")
    if not value.strip() or (mark and not scheme) or (mark and not rest and scheme != "memory"):
        raise click.BadParameter(f"{value!r} names no place: give an address such as s3://bucket/folder, or a path")
    if value == "-":
        raise click.BadParameter("a store is a folder, so - cannot be one: for a folder of that name say ./-")
    return value


def _copy_options(command: Callable[..., None]) -> Callable[..., None]:
    dry_run = click.option("--dry-run", is_flag=True, help="Copy nothing and say what would be copied.")
    return click.argument("url", callback=_check_url)(directory_option(dry_run(json_option(command))))


@click.command()
@_copy_options
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
@_copy_options
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
    from fusioncache.store import remote as remotes

    remote, copy = remotes.Remote(url), remotes.push if what == "push" else remotes.pull
    with report_store_errors():
        if what == "pull":
            _require_before_making(directory, remote)
        store = open_store(directory, make=what == "pull")
        with show_progress(what) as progress:
            copied = copy(store, remote, progress, dry_run=dry_run)
    if as_json:
        print_json({"command": what, "url": str(remote), "dry_run": dry_run, **encode_fields(copied)})
    else:
        say(_describe_copy(what, str(remote), dry_run, copied), err=False)
    # What another version wrote is not damaged.
    _report_refused(copied.refused, fails=bool(copied.refused.keys() - {OTHER_FORMAT}))


def _require_before_making(directory: Path | None, remote: Remote) -> None:
    """Makes sure that no store is made for the sake of a wrong address."""
    from fusioncache.store.remote import list_remote

    path = directory or default_path()
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        list_remote(remote, make=False)


def _describe_copy(what: str, url: str, dry_run: bool, copied: CopyResult) -> str:
    if not (copied.entries or copied.skipped or copied.refused):
        return f"nothing to {what}: {'the store' if what == 'push' else url} has no entries"
    did, side = f"would {what}" if dry_run else f"{what}ed", "to" if what == "push" else "from"
    size = format_bytes(copied.bytes)
    return f"{did} {format_contents(copied)} ({size}) {side} {url}; {copied.skipped} were there already"


def _report_refused(refused: Mapping[str, int], *, fails: bool) -> None:
    """Says what was left out, and exits with 1 if something is wrong with any of it."""
    for reason, number in sorted(refused.items()):
        say(f"left out {number}: {reason}")
    if fails:
        raise click.exceptions.Exit(1)


class _Warm(click.Command):
    """Leaves everything that stands behind a script to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = not any(map(_is_script, args))
        return super().parse_args(ctx, args)


@click.command(cls=_Warm)
@click.argument("store", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--jobs", type=click.IntRange(1), help="How many processes compile; by default a few.")
@click.option("--dry-run", is_flag=True, help="Compile nothing and say what would be compiled.")
@json_option
def warm(store: str | None, arguments: tuple[str, ...], jobs: int | None, dry_run: bool, as_json: bool) -> None:
    """Compile what STORE knows, before a job needs it.

    STORE is a directory; or a URL that 'fusioncache pull' takes, which is pulled first; or nothing, for the store that
    caches use. What other versions or machines compiled is compiled again for this device and these versions. If
    nothing has changed since the last time, it ends at once.

    If STORE is a Python script, it runs with the arguments that follow it, and what it compiles is stored.

    Exits with 1 if something is damaged or fails to compile, and if the script fails. What is left out because it is
    for another machine, or because the store cannot hold it, is counted with the reason.

    \b
    Examples:
        fusioncache warm
        fusioncache warm s3://bucket/fusioncache --jobs 8
        fusioncache warm train.py --steps 1
    """
    if store is not None and store.endswith(".py") and not Path(store).exists():
        raise click.UsageError(f"there is no script {store}: check its path.")
    if store is not None and _is_script(store):
        if jobs or dry_run:
            raise click.UsageError("--jobs and --dry-run are for a store, and this is a script: leave them out.")
        _run_script(store, arguments[1:] if arguments[:1] == ("--",) else arguments, as_json)
        return
    if arguments:
        raise click.UsageError(f"{store} is no script, and only a script takes arguments: leave out {arguments[0]!r}.")
    _warm(store, jobs or min(_MOST_JOBS, os.cpu_count() or 1), dry_run, as_json)


def _is_script(argument: str) -> bool:
    return argument.endswith(".py") and Path(argument).is_file()


def _warm(address: str | None, jobs: int, dry_run: bool, as_json: bool) -> None:
    with report_store_errors():
        store = _open(address, dry_run)
        warmed = _compile_missing(store, jobs, dry_run)
    if as_json:
        print_json({"command": "warm", "store": str(store.directory), "dry_run": dry_run, **encode_fields(warmed)})
    else:
        nothing = f"nothing to compile: {store.directory} has no executables"
        say(_describe_warmed(warmed, dry_run) if warmed.known else nothing, err=False)
    _report_refused(warmed.refused, fails=bool(warmed.failed))


def _compile_missing(store: Store, jobs: int, dry_run: bool) -> Warmed:
    from fusioncache.accelerators.precompile.warm import warm

    with show_progress("warm") as progress:
        return warm(store, jobs=jobs, progress=progress, dry_run=dry_run)


def _open(address: str | None, dry_run: bool) -> Store:
    """Opens the store in a directory, or the usual one after everything at a URL was pulled into it.

    Raises:
        StoreError, OSError: if the directory has no store, or its store cannot be used.
    """
    from fusioncache.store import remote as remotes

    if address is not None and "://" in address:
        store = open_store(None, make=True)
        with show_progress("pull") as progress:
            remotes.pull(store, remotes.Remote(address), progress)
        return store
    # A dry run brings nothing from a remote; else what is there need not be compiled.
    return Store.open(open_existing(Path(address) if address else None).path, remote="" if dry_run else None)


def _describe_warmed(warmed: Warmed, dry_run: bool) -> str:
    done = f"{warmed.compiled} of {format_count(warmed.templates, 'template', 'templates')}"
    if dry_run:
        return f"would compile {done}; {format_count(warmed.ready, 'is', 'are')} ready"
    return f"compiled {done} in {warmed.seconds:.1f} s; {format_count(warmed.ready, 'was', 'were')} ready"


def _run_script(script: str, arguments: tuple[str, ...], as_json: bool) -> None:
    """Runs a script with the store switched on, and says what the store has got by it."""
    before = _list_executables()
    environment = {**os.environ, STORE.name: "1"}
    status = subprocess.run([sys.executable, script, *arguments], env=environment, stdout=_STDERR).returncode
    after = _list_executables()
    new = len(after - before)
    if as_json:
        print_json({"command": "warm", "script": script, "status": status, "compiled": new, "kept": len(after)})
    else:
        kept = format_count(len(after), "is", "are")
        click.echo(f"compiled {format_count(new, 'executable', 'executables')}; {kept} stored now")
    if status:
        raise click.ClickException(f"{script} ended with status {status}")


def _list_executables() -> frozenset[str]:
    """Returns the executables of the usual store, without notes that something cannot be stored."""
    stored = list_stored(None, "executable")[1] if default_path().exists() else ()
    return frozenset(one.entry.id for one in stored if one.refused is None)
