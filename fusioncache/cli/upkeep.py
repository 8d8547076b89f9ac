"""Commands that maintain the record and the store, compile ahead, and print completion scripts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusioncache.cli.console import (
    AGE,
    BYTES,
    LENGTHS,
    Column,
    check_url,
    count_columns,
    directory_option,
    dry_run_option,
    encode_fields,
    format_table,
    json_option,
    print_json,
    say,
    show_progress,
    unsigned_option,
    wrap,
)
from fusioncache.cli.things import (
    format_contents,
    format_removal,
    is_expected,
    open_existing,
    report_foreign_files,
    report_refused,
)
from fusioncache.humanize import format_bytes, format_count
from fusioncache.observe.record import database
from fusioncache.observe.record.database import forget, record_path
from fusioncache.observe.record.database import prune as prune_record
from fusioncache.process.settings import REMOTE
from fusioncache.store import Store, SweepResult, default_path
from fusioncache.store.directory import open_directory
from fusioncache.store.disk import DiskStore, audit, find_aside, remove_damaged
from fusioncache.store.store import MAX_AGE, MAX_BYTES
from fusioncache.store.transport import redact_url

if TYPE_CHECKING:
    from fusioncache.accelerators.precompile.warm import Warmed

_DAMAGE_COLUMNS = (Column("what"), Column("id", cut=True), Column("reason", fold=True))


@click.command()
@click.option("--store", "store_only", is_flag=True, help="Clear only the store.")
@click.option("--record", "record_only", is_flag=True, help="Clear only the record.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@directory_option
@json_option
def clear(store_only: bool, record_only: bool, yes: bool, dry_run: bool, directory: Path | None, as_json: bool) -> None:
    """Remove the entries of the store, and the record of all runs.

    It asks first. A running process keeps its loaded entries, and makes others again when it needs them. Entries of
    another version of fusioncache stay. If there is nothing to remove, it prints that. With --dir, it clears only that
    store, and the record if --record is given.

    \b
    Examples:
        fusioncache clear --dry-run
        fusioncache clear --store -y
    """
    store_only |= directory is not None
    store = None if record_only and not store_only else directory or default_path()
    record = None if store_only and not record_only else record_path()
    planned = _plan_clearing(store) if store else None
    has_record = record is not None and record.exists(follow_symlinks=False)
    there = [str(path) for path, is_there in ((store, planned), (record, has_record)) if is_there]
    if there and not (dry_run or yes):
        width = count_columns()
        question = wrap(f"Remove what is in {' and '.join(there)}?", width and width - len(" [y/N]: "))
        click.confirm(question, abort=True, err=True)
    swept = planned if dry_run or not planned or not store else _open_to_clear(store).sweep()
    removed = record if has_record and record and (dry_run or forget(record)) else None
    if as_json:
        print_json({"dry_run": dry_run, "store": swept, "record": removed is not None})
        return
    if swept:
        click.echo(format_removal(swept, dry_run))
    if removed:
        say(f"{'would remove' if dry_run else 'removed'} the record {removed}", err=False)
    if not there:
        say(f"There is nothing to remove in {' and '.join(str(path) for path in (store, record) if path)}.")
    if swept and store:
        report_foreign_files(store, find_aside(store))


def _plan_clearing(path: Path) -> SweepResult | None:
    """Returns what a sweep would remove from a store; None if there is nothing to remove."""
    if not path.exists(follow_symlinks=False) or (path.is_dir() and not any(path.iterdir())):
        return None  # opening it would make it a store
    planned = _open_to_clear(path).plan()
    return planned if any(encode_fields(planned).values()) else None


def _open_to_clear(path: Path) -> DiskStore:
    return DiskStore(open_directory(path), 0, 0.0)


@click.command()
@click.option("--max-bytes", type=BYTES, metavar="SIZE", help="Largest store size, as in 500MB.  [default: 2GiB]")
@click.option("--record-bytes", type=BYTES, metavar="SIZE", help="Largest record size.  [default: 64MiB]")
@click.option("--max-age", type=AGE, metavar="AGE", help="Longest time without use, as in 30d.  [default: 90d]")
@click.option("--remote", metavar="URL", callback=check_url, help="Remove packs from URL, and nothing here.")
@click.option("--written", type=AGE, metavar="AGE", help="With --remote: also packs written longer ago than AGE.")
@click.option("--version", default="", metavar="VERSION", help="With --remote: also packs of any other version.")
@unsigned_option
@dry_run_option
@directory_option
@json_option
def prune(
    max_bytes: float | None,
    record_bytes: float | None,
    max_age: float | None,
    remote: str | None,
    written: float | None,
    version: str,
    unsigned: bool,
    dry_run: bool,
    directory: Path | None,
    as_json: bool,
) -> None:
    """Reduce the store and the record, or a remote, to their limits.

    It removes entries beyond the age limit, and then the least recently used ones until the rest fits. From the record,
    it removes the oldest runs. Without options, it applies the limits that every process applies. A running process
    keeps its loaded entries. The newest run and the entries of another version of fusioncache stay. With --dir, it
    prunes only that store.

    With --remote, it removes a pack if no machine that pushes has used it for --max-age. It also removes a pack if a
    newer one has all its entries, or if a revoked key signed it. Other machines may push and load meanwhile.

    \b
    Examples:
        fusioncache prune
        fusioncache prune --max-bytes 500MB --dry-run
        fusioncache prune --max-age 30d
        fusioncache prune --remote s3://bucket/fusioncache --max-age 30d
    """
    if remote is not None:
        if max_bytes is not None or record_bytes is not None or directory is not None:
            raise click.UsageError("--remote takes --max-age, --written and --version: leave out the other limits.")
        from fusioncache.cache.exchange import Retention
        from fusioncache.cli.exchange import prune_packs

        unused, age = (float("inf") if limit is None else limit for limit in (max_age, written))
        retention = Retention(unused, age, version)
        prune_packs(remote, retention, unsigned=unsigned, dry_run=dry_run, as_json=as_json)
        return
    if written is not None or version or unsigned:
        raise click.UsageError("--written, --version and --unsigned are for a remote: add --remote URL.")
    record = record_path() if directory is None and record_path().exists() else None
    most = database.MAX_BYTES if record_bytes is None else int(record_bytes)
    oldest = database.MAX_AGE if max_age is None else max_age
    pruned = prune_record(record, most, oldest, dry_run=dry_run) if record else None
    path, swept = None, None
    if not record or is_expected(None):
        store = open_existing(directory)
        most, age = MAX_BYTES if max_bytes is None else int(max_bytes), MAX_AGE if max_age is None else max_age
        disk = DiskStore(store, most, age)
        path, swept = store.path, disk.plan() if dry_run else disk.sweep()
    if as_json:
        about = {"store": path and str(path), "dry_run": dry_run, "record": pruned}
        print_json({**about, **(encode_fields(swept) if swept else {})})
        return
    if swept:
        click.echo(format_removal(swept, dry_run))
    if pruned and pruned.runs:
        runs, left = format_count(pruned.runs, "run", "runs"), format_bytes(pruned.bytes_left)
        said = f"would forget {runs}; the record would have" if dry_run else f"forgot {runs}; the record has"
        click.echo(f"{said} {left}")


@click.command()
@click.option("--remove", is_flag=True, help="Remove damaged files. A process that needs them compiles again.")
@directory_option
@json_option
def verify(remove: bool, directory: Path | None, as_json: bool) -> None:
    """Read all files of the store, and list the damaged ones.

    It exits with 1 if a damaged file remains. No process uses a damaged file: it compiles instead.

    \b
    Examples:
        fusioncache verify
        fusioncache verify --remove
    """
    path = open_existing(directory).path
    found = audit(path)
    removed = remove_damaged(path, found.damaged) if remove and found.damaged else 0
    aside = find_aside(path)
    if as_json:
        print_json({"store": str(path), **encode_fields(found), "aside": aside, "removed": removed})
    else:
        if found.damaged:
            click.echo(format_table(_DAMAGE_COLUMNS, map(encode_fields, found.damaged)))
        parts = [f"{format_contents(found)} ({format_bytes(found.bytes)})", f"{len(found.damaged)} damaged"]
        parts += [f"{removed} removed"] if removed else []
        parts += [f"{format_count(found.other, 'entry', 'entries')} of another version"] if found.other else []
        say(", ".join(parts), err=False)
        report_foreign_files(path, aside)
    if removed < len(found.damaged):
        raise click.exceptions.Exit(1)


@click.command("dir")
@json_option
def dir_(as_json: bool) -> None:
    """Print the directory of the record and the store.

    It need not exist yet. --json adds the paths of the record and the store, and the remote in FUSIONCACHE_REMOTE.
    Processes fetch missing entries from that remote.

    \b
    Examples:
        fusioncache dir
        du -sh "$(fusioncache dir)"
        fusioncache dir --json
    """
    record = record_path()
    if not as_json:
        click.echo(record.parent)
        return

    remote = REMOTE.get_text()
    where = {"directory": record.parent, "record": record, "store": default_path()}
    print_json({**where, "remote": redact_url(remote) if remote else None})


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL.

    The script completes commands, options and IDs. Each completion reads the IDs from the record and the store.

    \b
    Examples:
        fusioncache completion bash >> ~/.bashrc
        fusioncache completion zsh >> ~/.zshrc
        fusioncache completion fish > ~/.config/fish/completions/fusioncache.fish
    """
    from click.shell_completion import get_completion_class

    from fusioncache.cli.main import main

    completer = get_completion_class(shell)
    assert completer is not None  # click knows these three
    click.echo(completer(main, {}, "fusioncache", "_FUSIONCACHE_COMPLETE").source())


_MOST_JOBS = 4


def _read_store(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Path | None:
    if value == "":
        raise click.BadParameter("'' names no store: give its directory, or nothing for the default.")
    if value and "://" in value:
        raise click.UsageError(f"{value} is an address: 'fusioncache pull {value}' first, then 'fusioncache warm'.")
    if value and value.endswith(".py"):
        raise click.UsageError(f"{value} is a script, which stores what it compiles: run it by itself.")
    return Path(value) if value else None


@click.command()
@click.argument("store", required=False, callback=_read_store)
@click.option("--jobs", type=click.IntRange(1), help="Number of processes that compile; a few by default.")
@click.option("--dry-run", is_flag=True, help="Compile nothing, and print what would be compiled.")
@click.option("--lengths", type=LENGTHS, default=(), help="Compile for these lengths, too, as in 32:512:32 or 64,96.")
@json_option
def warm(store: Path | None, jobs: int | None, dry_run: bool, lengths: tuple[int, ...], as_json: bool) -> None:
    """Compile the templates of STORE before a job needs them.

    STORE is a directory. The default is the store that caches use. 'fusioncache pull' copies into it. Templates that
    other versions or machines compiled are compiled again for this device and these versions. If nothing has changed
    since the last time, it ends at once.

    With --lengths, it also compiles for lengths that no process has used, if STORE has programs of the model at two
    lengths. 32:512:32 means 32, 64 and so on up to 512. Code for any sizes in STORE serves all lengths already.

    It exits with 1 if an entry is damaged or fails to compile. It counts omitted templates by reason, such as another
    machine, or an executable that the store cannot hold.

    \b
    Examples:
        fusioncache warm
        fusioncache pull s3://bucket/fusioncache && fusioncache warm --jobs 8
        fusioncache warm --lengths 32:2048:32
    """
    from fusioncache.accelerators.precompile.warm import warm as compile_missing

    workers = jobs or min(_MOST_JOBS, os.cpu_count() or 1)
    # A dry run copies nothing from a remote. Otherwise entries there are copied, and need not be compiled.
    opened = Store.open(open_existing(store).path, remote="" if dry_run else None)
    with show_progress("warm") as progress:
        warmed = compile_missing(opened, jobs=workers, progress=progress, dry_run=dry_run, lengths=lengths)
    if as_json:
        print_json({"command": "warm", "store": str(opened.directory), "dry_run": dry_run, **encode_fields(warmed)})
    else:
        nothing = f"nothing to compile: {opened.directory} has no executables"
        say(_describe_warmed(warmed, dry_run) if warmed.known else nothing, err=False)
    report_refused(warmed.refused, fails=bool(warmed.failed))


def _describe_warmed(warmed: Warmed, dry_run: bool) -> str:
    done = f"{warmed.compiled} of {format_count(warmed.templates, 'template', 'templates')}"
    if dry_run:
        return f"would compile {done}; {format_count(warmed.ready, 'is', 'are')} ready"
    return f"compiled {done} in {warmed.seconds:.1f} s; {format_count(warmed.ready, 'was', 'were')} ready"
