"""What the ranks of a job compile between them, and how long their first step takes.

Each count of ranks is a job of its own under ``torchrun`` with empty cache directories; all ranks run the same training
step on a device of their own. ``together``: the ranks share a directory, as on one machine; ``separate``: each has one
of its own, as on machines without a common file system, so that only the job itself connects them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.common import processes
from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import Numbers, Words, backend_option, command, json_option, repeat_option
from benchmarks.common.report import console, make_table
from benchmarks.common.results import make_result, say, write_result
from benchmarks.common.spec import MODELS, ModelSpec

_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
_WORKER = "benchmarks.ranks.worker"
_THREADS = "1"
"""The same for every count of ranks: how many threads there are changes a CPU's kernels, and so the bits."""


@command(__doc__)
@click.option("--ranks", type=Numbers(), default="1,2", help="As in 1,2,4.")
@click.option("--directories", type=Words(("together", "separate")), default="together,separate")
@click.option("--model", type=click.Choice(MODELS), default="llama")
@click.option("--layers", type=click.IntRange(min=1), default=2)
@backend_option("nvfuser", "inductor")
@repeat_option("Jobs for each point; the median counts.")
@json_option
def main(
    json_file: Path | None,
    ranks: tuple[int, ...],
    directories: tuple[str, ...],
    repeat: int,
    model: str,
    layers: int,
    backend: str,
) -> None:
    """Runs the benchmark."""
    machine = inspect_machine(backend)
    spec = ModelSpec(model, layers, machine.backend, machine.device, machine.choose_dtype(model))
    wanted = [(count, kind) for count in ranks for kind in (directories if count > 1 else directories[:1])]
    jobs: dict[tuple[int, str], list[list[dict[str, Any]]]] = {each: [] for each in wanted}
    for _ in range(repeat):
        for count, kind in wanted:
            jobs[count, kind].append(run_job(spec, count, kind == "separate"))
    points = [make_point(count, kind, found) for (count, kind), found in jobs.items()]
    equal = len({rank["digest"] for found in jobs.values() for job in found for rank in job}) == 1
    result = make_result(machine.environment, asdict(spec), points=points, equal=equal)
    write_result(json_file, result)
    _print(result)
    sys.exit(0 if equal else 1)


def run_job(spec: ModelSpec, count: int, separate: bool) -> list[dict[str, Any]]:
    """Runs a job, and returns what each of its ranks says.

    Raises:
        click.ClickException: if one of them failed.
    """
    with TemporaryDirectory(prefix="fusioncache-ranks-") as directory:
        answers = Path(directory, "answers")
        answers.mkdir()
        argument = json.dumps({"spec": asdict(spec), "separate": separate})
        command = [*_TORCHRUN, f"--nproc-per-node={count}", "-m", _WORKER, argument, str(answers)]
        environment = {**processes.environment_in(directory), "OMP_NUM_THREADS": _THREADS}
        done = subprocess.run(command, cwd=processes.ROOT, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise click.ClickException(f"a job of {count} ranks failed:\n{done.stderr[-4000:]}")
        found = [json.loads((answers / f"{rank}.json").read_text()) for rank in range(count)]
    slowest = max(rank["seconds"]["first_step"] for rank in found)
    compiles = [rank["compiles"] for rank in found]
    say(f"{count} ranks: first step {slowest:.2f} s, compiles {compiles}\n")
    return found


def make_point(count: int, kind: str, jobs: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Returns medians of what happened in all ranks: the slowest rank's first step, the sum of their counts."""
    return {
        "ranks": count,
        "directories": kind,
        "first_step": median(max(rank["seconds"]["first_step"] for rank in job) for job in jobs),
        "compiles": median(sum(rank["compiles"] for rank in job) for job in jobs),
        "loads": median(sum(rank["loads"] for rank in job) for job in jobs),
        "jobs": jobs,
    }


def _print(result: dict[str, Any]) -> None:
    options, points = result["environment"]["options"], result["points"]
    title = f"first step of a job: {options['model']}, {options['layers']} layers, {options['backend']}"
    caption = "seconds of the slowest rank; compiles and loads of all ranks together"
    columns = ("ranks", "<directories", "first step", "by the first row", "compiles", "loads", "compiles by rank")
    rows = [
        [
            str(point["ranks"]),
            point["directories"],
            f"{point['first_step']:.2f}",
            f"{point['first_step'] / points[0]['first_step']:.2f}",
            f"{point['compiles']:g}",
            f"{point['loads']:g}",
            " ".join(str(rank["compiles"]) for rank in point["jobs"][0]),
        ]
        for point in points
    ]
    out = console()
    out.print(make_table(title, caption, columns, rows))
    out.print("all ranks computed the same bits" if result["equal"] else "error: the ranks' bits differ")


if __name__ == "__main__":
    main()
