"""How long ``fusioncache warm`` takes with more processes and with fewer.

A training step fills a store as another version of the compiler would. Each number of processes then gets a copy of
that store, of which nothing is ready, and compiles all of it in a fresh process of the command line. ``whole`` are the
seconds from that process's start to its end, with its imports; ``compiling`` are those that it says it took.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks.common import processes
from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import Numbers, backend_option, command, json_option
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.common.spec import MODELS, ModelSpec

_WORKER = "benchmarks.warm_ahead.worker"
_STORE = {"FUSIONCACHE_STORE": "1"}


@command(__doc__)
@click.option("--model", type=click.Choice(MODELS), default="llama")
@click.option("--layers", type=click.IntRange(min=1), default=8)
@click.option("--jobs", type=Numbers(), default=(1, 2, 4, 8), help="As in 1,2,4,8.")
@backend_option("nvfuser", "inductor")
@json_option
def main(json_file: Path | None, model: str, layers: int, jobs: Sequence[int], backend: str) -> None:
    """Runs the benchmark."""
    machine = inspect_machine(backend)
    spec = ModelSpec(model, layers, machine.backend, machine.device, machine.choose_dtype(model))
    points: list[Point] = []
    with TemporaryDirectory(prefix="fusioncache-ahead-", ignore_cleanup_errors=True) as directory:
        filled = Path(directory, "filled")
        filled.mkdir()
        templates = processes.call(_WORKER, asdict(spec), caches=filled, environment=_STORE)
        for number in jobs:
            points.append(_warm(filled, Path(directory, str(number)), number))
            say(f"{number} processes: {points[-1]['seconds']['whole']:.2f} s\n")
            write_result(json_file, make_result(machine.environment, asdict(spec), templates=templates, points=points))
    _print(points, templates)
    sys.exit(0 if all(point["compiled"] == templates for point in points) else 1)


def _warm(filled: Path, caches: Path, jobs: int) -> Point:
    """Compiles what a copy of a store lacks, and returns what that took and made."""
    shutil.copytree(filled, caches)
    arguments = [sys.executable, "-m", "fusioncache", "warm", "--jobs", str(jobs), "--json"]
    environment = {**processes.environment_in(str(caches)), **_STORE}
    start = time.perf_counter()
    done = subprocess.run(arguments, cwd=processes.ROOT, env=environment, stdout=subprocess.PIPE)
    whole = time.perf_counter() - start
    said = json.loads(done.stdout)
    return {
        "jobs": jobs,
        "seconds": {"whole": whole, "compiling": said["seconds"]},
        **{name: said[name] for name in ("known", "ready", "compiled", "refused")},
    }


def _print(points: Sequence[Point], templates: int) -> None:
    rows = [
        [
            str(point["jobs"]),
            *(f"{point['seconds'][part]:.2f}" for part in ("whole", "compiling")),
            str(point["compiled"]),
        ]
        for point in points
    ]
    columns = ("processes", "whole", "compiling", "compiled")
    console().print(make_table(f"seconds to compile {templates} templates ahead", None, columns, rows))


if __name__ == "__main__":
    main()
