"""The command stats: what a run counted."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from fusioncache.cli.json_output import encode_run, print_json
from fusioncache.cli.lookup import find_record, pick_run
from fusioncache.cli.options import json_option, run_option
from fusioncache.cli.programs import list_programs
from fusioncache.cli.runs import print_counts, print_runs, print_store, print_summary
from fusioncache.cli.storage import list_store, measure_store


@click.command()
@run_option
@click.option("--runs", "all_runs", is_flag=True, help="List all recorded runs instead, newest first.")
@click.option("-v", "--verbose", is_flag=True, help="Print every count, one a line.")
@json_option
def stats(run_id: str | None, all_runs: bool, verbose: bool, as_json: bool) -> None:
    """Show what a run shared, compiled, loaded and saved.

    It is the newest run, or the one that --run names: by the start of its id, by any part of its name (script, model
    or time) that no other run has, or as 'last'. What a run counts is on record as soon as the first call of a template
    is over, so a run may still go on, or have been killed.

    The saved seconds are an estimate: the seconds that the process would have spent longer without fusioncache on
    compiling regions and on deriving programs, less what fusioncache itself took for that. Less than nothing is a loss.
    A region that shares its template saves what Thunder alone spends on a further equal region. An executable or a
    program that is loaded saves what making it took. The one-time start of a compiler is shown by itself: it is part of
    no compile, and Thunder alone spends it as well. All runs are those on record and those that the record has
    forgotten since.

    \b
    Examples:
        fusioncache stats
        fusioncache stats --runs
        fusioncache stats --run train.py -v
        fusioncache stats --run 5f3a --json
    """
    if all_runs and (run_id is not None or verbose):
        raise click.UsageError("--runs lists all runs, --run and --verbose are about one: give only one of them.")
    record = find_record(run_id)
    if record is None:
        _print_unrecorded(all_runs, as_json)
        return
    runs = record.runs() if all_runs else (pick_run(record, run_id),)
    if as_json:
        around = {"lifetime": asdict(record.lifetime()), "store": _encode_usage()}
        print_json({**({"runs": [*map(encode_run, runs)]} if all_runs else encode_run(runs[0])), **around})
    elif all_runs:
        print_runs(runs)
    elif verbose:
        print_counts(runs[0], record.lifetime())
    else:
        print_summary(runs[0], record.lifetime(), measure_store())


def _print_unrecorded(all_runs: bool, as_json: bool) -> None:
    """Prints what the store has where no run is on record, as on a machine that only pulled."""
    if as_json:
        print_json({**({"runs": []} if all_runs else {"id": None}), "lifetime": None, "store": _encode_usage()})
        return
    path, executables, refused = list_store(None)
    print_store(path, executables, refused, list_programs(None)[1], measure_store())


def _encode_usage() -> dict[str, Any] | None:
    """Returns how much the store has, as JSON; None if there is none."""
    store = measure_store()
    if store is None:
        return None
    counts = {"executables": store.executables, "programs": store.programs, "bytes": store.size}
    return {"path": str(store.path), **counts}
