"""Commands that look after the record and the store: clear, prune, verify and dir; and bench and completion."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import click

import fusioncache
from fusioncache.cli.output import Column, count_columns, encode_fields, format_table, print_json, say, wrap
from fusioncache.cli.parameters import AGE, BYTES, directory_option, dry_run_option, json_option
from fusioncache.cli.stored import (
    format_contents,
    format_removal,
    is_expected,
    open_existing,
    report_aside,
    report_store_errors,
)
from fusioncache.humanize import format_bytes, format_count
from fusioncache.observe.record import schema
from fusioncache.observe.record.reader import forget
from fusioncache.observe.record.reader import prune as prune_record
from fusioncache.observe.record.schema import record_path
from fusioncache.process.settings import REMOTE
from fusioncache.store import SweepResult, default_path
from fusioncache.store.directory import open_directory
from fusioncache.store.disk import DiskStore, audit, find_aside, remove_damaged
from fusioncache.store.store import MAX_AGE, MAX_BYTES
from fusioncache.store.transport import redact_url

SCRIPT = Path(fusioncache.__file__).parents[1] / "benchmarks" / "compile_scaling.py"
"""Where the benchmark is in a checkout. It is not installed with the package."""
_DAMAGE_COLUMNS = (Column("what"), Column("id", cut=True), Column("reason", fold=True))


@click.command()
@click.option("--store", "store_only", is_flag=True, help="Only the store.")
@click.option("--record", "record_only", is_flag=True, help="Only the record.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@directory_option
@json_option
def clear(store_only: bool, record_only: bool, yes: bool, dry_run: bool, directory: Path | None, as_json: bool) -> None:
    """Remove everything from the store, and the record of all runs.

    It asks first. What a running process uses stays, and so does what another version of fusioncache wrote. Where there
    is nothing to remove, it says so.

    \b
    Examples:
        fusioncache clear --dry-run
        fusioncache clear --store -y
    """
    store = None if record_only and not store_only else directory or default_path()
    record = None if store_only and not record_only else record_path()
    with report_store_errors():
        planned = _plan_clearing(store) if store else None
        has_record = record is not None and os.path.lexists(record)
    there = [str(path) for path, is_there in ((store, planned), (record, has_record)) if is_there]
    if there and not (dry_run or yes):
        width = count_columns()
        question = wrap(f"Remove what is in {' and '.join(there)}?", width and width - len(" [y/N]: "))
        click.confirm(question, abort=True, err=True)
    with report_store_errors():
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
        report_aside(store, find_aside(store))


def _plan_clearing(path: Path) -> SweepResult | None:
    """Returns what there is to remove from a store; None if that is nothing."""
    if not os.path.lexists(path) or (path.is_dir() and not any(path.iterdir())):
        return None  # opening it would make it a store
    planned = _open_to_clear(path).plan()
    return planned if any(encode_fields(planned).values()) else None


def _open_to_clear(path: Path) -> DiskStore:

    return DiskStore(open_directory(path), 0, 0.0)


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
    runs. Without options it applies the limits that every process applies. What a running process uses stays, and so
    does the newest run, and what another version of fusioncache wrote. With --dir only that store is looked at.

    \b
    Examples:
        fusioncache prune
        fusioncache prune --max-bytes 500MB --dry-run
        fusioncache prune --max-age 30d
    """
    record = record_path() if directory is None and record_path().exists() else None
    most = schema.MAX_BYTES if record_bytes is None else int(record_bytes)
    oldest = schema.MAX_AGE if max_age is None else max_age
    pruned = prune_record(record, most, oldest, dry_run=dry_run) if record else None
    path, swept = None, None
    if not record or is_expected(None):
        with report_store_errors():
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
    with report_store_errors():
        path = open_existing(directory).path
        found = audit(path)
        removed = remove_damaged(path, found.damaged) if remove and found.damaged else 0
        found = dataclasses.replace(found, aside=find_aside(path))
    if as_json:
        print_json({"store": str(path), **encode_fields(found), "removed": removed})
    else:
        if found.damaged:
            click.echo(format_table(_DAMAGE_COLUMNS, map(encode_fields, found.damaged)))
        parts = [f"{format_contents(found)} ({format_bytes(found.bytes)})", f"{len(found.damaged)} damaged"]
        parts += [f"{removed} removed"] if removed else []
        parts += [f"{format_count(found.other, 'entry', 'entries')} of another version"] if found.other else []
        say(", ".join(parts), err=False)
        report_aside(path, found.aside)
    if removed < len(found.damaged):
        raise click.exceptions.Exit(1)


@click.command("dir")
@json_option
def dir_(as_json: bool) -> None:
    """Print the directory that the record and the store are in.

    It need not exist yet. --json adds the paths of the record and the store, and the remote store that
    FUSIONCACHE_REMOTE names, from which missing entries come.

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


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF THE BENCHMARK]")
def bench(arguments: tuple[str, ...]) -> None:
    """Measure the time to a first step as models get deeper, with fusioncache and without.

    This is benchmarks/compile_scaling.py of the source, which is not installed with the package: it works in a
    checkout that was installed with pip install -e ".[bench]". It takes minutes. All arguments go to it.

    \b
    Examples:
        fusioncache bench
        fusioncache bench --model llama --layers 1,2,4,8 --json result.json
        fusioncache bench -- --help
    """
    if not SCRIPT.is_file():
        raise click.ClickException(
            "the benchmarks are part of the source and not of the installed package: clone fusioncache's repository, "
            'run pip install -e ".[bench]" there, and try again'
        )
    code = subprocess.run([sys.executable, str(SCRIPT), *arguments], check=False).returncode
    raise click.exceptions.Exit(code)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script for completion in SHELL. It completes commands, options and IDs.

    IDs come from the record and the store at the moment of completion.

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
