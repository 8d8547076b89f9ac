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
from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.common import processes, report
from benchmarks.common.hardware import look
from benchmarks.common.options import Layers, Modes, NewFile
from benchmarks.scaling.spec import MODELS, Spec

SCHEMA = 1
_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
_WORKER = "benchmarks.ranks.worker"
_THREADS = "1"
"""The same for every count of ranks: how many threads there are changes a CPU's kernels, and so the bits."""


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--ranks", type=Layers(), default="1,2", help="As in 1,2,4.")
@click.option("--directories", type=Modes(("together", "separate")), default="together,separate")
@click.option("--model", type=click.Choice(MODELS), default="llama")
@click.option("--layers", type=click.IntRange(min=1), default=2)
@click.option("--backend", type=click.Choice(["auto", "nvfuser", "inductor"]), default="auto")
@click.option("--repeat", type=click.IntRange(min=1), default=1, help="Jobs for each point; the median counts.")
@click.option("--json", "json_file", type=NewFile(), metavar="FILE", help="Write the result as one JSON object.")
def main(
    json_file: Path | None, ranks: tuple[int, ...], directories: tuple[str, ...], repeat: int, **options: Any
) -> None:
    here = look(options["backend"])
    dtype = "bfloat16" if here["device"] == "cuda" and options["model"] == "llama" else "float32"
    rest = here["backend"], here["device"], dtype, 10
    spec = Spec(options["model"], options["layers"], "cached", False, True, *rest)
    wanted = [(count, kind) for count in ranks for kind in (directories if count > 1 else directories[:1])]
    jobs: dict[tuple[int, str], list[list[dict[str, Any]]]] = {each: [] for each in wanted}
    for _ in range(repeat):
        for count, kind in wanted:
            jobs[count, kind].append(_job(spec, count, kind == "separate"))
    points = [_point(count, kind, found) for (count, kind), found in jobs.items()]
    result = {"schema": SCHEMA, "environment": here["environment"] | {"options": asdict(spec)}, "points": points}
    result["equal"] = len({rank["digest"] for found in jobs.values() for job in found for rank in job}) == 1
    if json_file:
        json_file.write_text(json.dumps(result, indent=1) + "\n")
    _print(result)
    sys.exit(0 if result["equal"] else 1)


def _job(spec: Spec, count: int, separate: bool) -> list[dict[str, Any]]:
    """What each rank says.

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
    click.echo(f"{count} ranks: first step {slowest:.2f} s, compiles {compiles}", err=True)
    return found


def _point(count: int, kind: str, jobs: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians of what happened in all ranks: the slowest rank's first step, the sum of their counts."""
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
    out = report.console()
    table = Table(
        title=f"first step of a job: {options['model']}, {options['layers']} layers, {options['backend']}",
        caption="seconds of the slowest rank; compiles and loads of all ranks together",
        box=SIMPLE_HEAD,
    )
    for name in ("ranks", "directories", "first step", "by the first row", "compiles", "loads", "compiles by rank"):
        table.add_column(name, justify="left" if name == "directories" else "right")
    for point in points:
        ratio = point["first_step"] / points[0]["first_step"]
        each = " ".join(str(rank["compiles"]) for rank in point["jobs"][0])
        counts = (f"{point['compiles']:g}", f"{point['loads']:g}", each)
        table.add_row(str(point["ranks"]), point["directories"], f"{point['first_step']:.2f}", f"{ratio:.2f}", *counts)
    out.print(table)
    out.print("all ranks computed the same bits" if result["equal"] else "error: the ranks' bits differ")


if __name__ == "__main__":
    main()
