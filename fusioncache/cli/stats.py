"""The command stats: what a run counted."""

from __future__ import annotations

import click

from fusioncache.cache.record import Record
from fusioncache.cli.data import print_json, run_data
from fusioncache.cli.options import json_option, run_option
from fusioncache.cli.pages import print_run, print_runs
from fusioncache.cli.pick import pick_run


@click.command()
@run_option
@click.option("--runs", "all_runs", is_flag=True, help="List all recorded runs instead, newest first.")
@json_option
def stats(run_id: str | None, all_runs: bool, as_json: bool) -> None:
    """Show what the newest run counted.

    The saved seconds are an estimate: each template's measured compile seconds times its hits.

    \b
    Examples:
        fusioncache stats
        fusioncache stats --runs
        fusioncache stats --run 5f3a --json
    """
    if all_runs and run_id is not None:
        raise click.UsageError("--runs lists all runs and --run shows one: give only one of them.")
    record = Record()
    runs = record.runs() if all_runs else (pick_run(record, run_id),)
    if all_runs and as_json:
        print_json({"runs": [run_data(run) for run in runs]})
    elif all_runs:
        print_runs(runs)
    elif as_json:
        print_json(run_data(runs[0]))
    else:
        print_run(runs[0])
