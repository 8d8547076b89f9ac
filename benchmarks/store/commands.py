"""Milliseconds of the command line on a record and a store of many templates, and what its start is made of.

Each figure is the median of fresh processes, from start to end, with everything in the operating system's memory.
Python's own start is among the figures, because it is part of every other one.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.common.environment import describe
from benchmarks.common.options import command, json_option
from benchmarks.common.processes import ROOT
from benchmarks.common.results import make_result, write_result
from benchmarks.store.contents import fill_record, fill_store
from fusioncache.observe.record.database import RecordReader
from fusioncache.store import Store, default_path


def time_process(arguments: Sequence[str], repeat: int) -> float:
    """Returns the median of so many processes of Python with these arguments."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def list_commands(name: str) -> dict[str, list[str]]:
    """Returns what is timed: arguments of Python by what a person would type."""
    lines = (
        "dir",
        "stats",
        "ls",
        "ls --limit 10",
        "ls --json",
        "ls --store",
        f"show {name}",
        f"graph {name}",
        "--help",
    )
    timed = {f"fusioncache {line.replace(name, 'ID')}": ["-m", "fusioncache", *line.split()] for line in lines}
    return {"python": ["-c", ""], "import fusioncache.cli.main": ["-c", "import fusioncache.cli.main"], **timed}


def measure(count: int, repeat: int) -> dict[str, float]:
    """Returns milliseconds by what was done."""
    name = RecordReader().templates(RecordReader().runs()[0].id)[count // 2].name
    return {what: 1e3 * time_process(arguments, repeat) for what, arguments in list_commands(name).items()}


@command(__doc__)
@click.option("--templates", type=click.IntRange(1), default=10_000, help="In the record, and entries in the store.")
@click.option("--ops", type=click.IntRange(1), default=40, help="Of each template.")
@click.option("--repeat", type=click.IntRange(1), default=5, help="Processes for each figure; the median counts.")
@json_option
def main(templates: int, ops: int, repeat: int, json_file: Path | None) -> None:
    """Runs the benchmark."""
    options = {name: value for name, value in locals().items() if name != "json_file"}
    os.fsync = lambda descriptor: None  # type: ignore[assignment]  # filling is not what is measured
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUSIONCACHE_DIR"] = folder
        fill_record(templates, ops)
        fill_store(templates)
        assert len(Store.open(default_path(), remote="").entries()) == templates
        milliseconds = measure(templates, repeat)
        size = RecordReader().path.stat().st_size
    for name, value in milliseconds.items():
        click.echo(f"{name:32} {value:10.1f} ms")
    click.echo(f"{'the record':32} {size / 1e6:10.1f} MB")
    if json_file:  # to describe the environment imports torch
        result = make_result(describe(), options, milliseconds=milliseconds, record_bytes=size)
        write_result(json_file, result)


if __name__ == "__main__":
    main()
