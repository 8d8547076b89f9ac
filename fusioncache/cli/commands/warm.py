"""Warm: compile before a job needs it, from what a store knows or by a trial run of the job's own script."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusioncache.cli.json_output import print_json
from fusioncache.cli.options import json_option
from fusioncache.cli.storage import list_store, open_existing, open_store, report_store_errors
from fusioncache.cli.terminal import say, show_progress
from fusioncache.humanize import format_count
from fusioncache.process.settings import STORE

if TYPE_CHECKING:
    from fusioncache.accelerators.precompile.warm import Warmed
    from fusioncache.store import Store

_MOST_JOBS = 4
_STDERR = 2


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
        _run(store, arguments[1:] if arguments[:1] == ("--",) else arguments, as_json)
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
        data = {
            **{field.name: getattr(warmed, field.name) for field in fields(warmed)},
            "refused": dict(warmed.refused),
        }
        print_json({"command": "warm", "store": str(store.directory), "dry_run": dry_run, **data})
    else:
        nothing = f"nothing to compile: {store.directory} has no executables"
        say(_text(warmed, dry_run) if warmed.known else nothing, err=False)
    _say_refused(warmed)


def _compile_missing(store: Store, jobs: int, dry_run: bool) -> Warmed:
    from fusioncache.accelerators.precompile.readiness import recall, remember
    from fusioncache.accelerators.precompile.warm import warm

    warmed = recall(store)
    if warmed is None:
        with show_progress("warm") as progress:
            warmed = warm(store, jobs=jobs, progress=progress, dry_run=dry_run)
        if not dry_run:
            remember(store, warmed)
    return warmed


def _open(address: str | None, dry_run: bool) -> Store:
    """Opens the store in a directory, or the usual one after everything at a URL was pulled into it.

    Raises:
        StoreError, OSError: if the directory has no store, or its store cannot be used.
    """
    from fusioncache.store import Store, remote
    from fusioncache.store.remote import Remote

    if address is not None and "://" in address:
        store = open_store(None, make=True)
        with show_progress("pull") as progress:
            remote.pull(store, Remote(address), progress)
        return store
    # A dry run brings nothing from a remote; else what is there need not be compiled.
    return Store.open(open_existing(Path(address) if address else None).path, remote="" if dry_run else None)


def _text(warmed: Warmed, dry_run: bool) -> str:
    done = f"{warmed.compiled} of {format_count(warmed.templates, 'template', 'templates')}"
    ready = format_count(warmed.ready, "is" if dry_run else "was", "are" if dry_run else "were")
    if dry_run:
        return f"would compile {done}; {ready} ready"
    return f"compiled {done} in {warmed.seconds:.1f} s; {ready} ready"


def _say_refused(warmed: Warmed) -> None:
    """Exits with 1 if anything was left out for which something is wrong."""
    for reason, number in sorted(warmed.refused.items()):
        say(f"left out {number}: {reason}")
    if warmed.failed:
        raise click.exceptions.Exit(1)


def _run(script: str, arguments: tuple[str, ...], as_json: bool) -> None:
    """Runs a script with the store switched on, and says what the store has got by it."""
    before = _ids()
    environment = {**os.environ, STORE.name: "1"}
    status = subprocess.run([sys.executable, script, *arguments], env=environment, stdout=_STDERR).returncode
    after = _ids()
    new = len(after - before)
    if as_json:
        print_json({"command": "warm", "script": script, "status": status, "compiled": new, "kept": len(after)})
    else:
        kept = format_count(len(after), "is", "are")
        click.echo(f"compiled {format_count(new, 'executable', 'executables')}; {kept} stored now")
    if status:
        raise click.ClickException(f"{script} ended with status {status}")


def _ids() -> frozenset[str]:
    """Returns the executables of the usual store, without notes that something cannot be kept."""
    from fusioncache.store import default_path

    if not default_path().exists():
        return frozenset()
    _, executables, refused = list_store(None)
    return frozenset(f"{executable.digest}.{executable.backend}" for executable in executables) - refused.keys()
