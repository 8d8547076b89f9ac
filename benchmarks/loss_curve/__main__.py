"""Whether a model that ranks share learns as it does in one process, with the same rows in each step.

A Llama learns which tokens follow which. One process has whole batches; the same one has them in as many parts as there
are ranks, which tells what rounding makes of itself; and ranks share them under each of ``--sharings``. A shared curve
may be four times as far from that of one process as that process's own in parts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.common import processes
from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import Words, backend_option, command, json_option, require_litgpt
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.distributed.spec import MODEL, WIDTHS
from benchmarks.loss_curve.spec import ALONE, IN_PARTS, SHARINGS, CurveSpec, compare_curves

_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
_LOG = 3000


@command(__doc__)
@click.option("--ranks", type=click.IntRange(min=2), default=2)
@click.option("--sharings", type=Words(SHARINGS), default=SHARINGS)
@click.option("--width", type=click.Choice(WIDTHS), default="narrow")
@click.option("--layers", type=click.IntRange(min=1), default=2)
@click.option("--tokens", type=click.IntRange(min=1), default=32, help="In a row.")
@click.option("--rows", type=click.IntRange(min=1), default=2, help="Of each rank.")
@click.option("--steps", type=click.IntRange(min=1), default=200)
@click.option("--learning-rate", type=click.FloatRange(min=0.0), default=1e-3)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), help="On a GPU bfloat16, else float32.")
@click.option("--limit", type=click.FloatRange(min=1.0), default=600.0, help="Seconds for each run.")
@backend_option()
@json_option
def main(
    json_file: Path | None, sharings: Sequence[str], dtype: str | None, limit: float, backend: str, **options: Any
) -> None:
    """Runs the benchmark."""
    require_litgpt(MODEL)
    machine = inspect_machine(backend)
    options |= {"backend": machine.backend, "device": machine.device, "dtype": dtype or machine.choose_dtype(MODEL)}
    points: list[Point] = []
    for way in (ALONE, IN_PARTS, *sharings):
        point = run(CurveSpec(way=way, **options), limit)
        say(f"{way}: {point.get('error') or 'loss {:.4f} to {:.4f}'.format(point['losses'][0], point['losses'][-1])}\n")
        points.append(point)
        compared = compare_curves({one["way"]: one["losses"] for one in points if "losses" in one})
        write_result(json_file, make_result(machine.environment, options, points=points, compared=compared))
    print_curves(points, compared)
    sys.exit(1 if any("error" in point for point in points) or not all(one["equal"] for one in compared) else 0)


def run(spec: CurveSpec, limit: float) -> Point:
    """Returns the losses of a training run, or the end of its log."""
    with TemporaryDirectory(prefix="fusioncache-loss-curve-", ignore_cleanup_errors=True) as folder:
        answer = Path(folder, "answer.json")
        environment = {**processes.environment_in(folder), "OMP_NUM_THREADS": "1"}
        argument = json.dumps(asdict(spec))
        start = [*_TORCHRUN, f"--nproc-per-node={spec.processes}", "-m", "benchmarks.loss_curve.worker", argument]
        with Path(folder, "log").open("w+") as log:
            where: dict[str, Any] = {"cwd": processes.ROOT, "env": environment, "stdin": subprocess.DEVNULL}
            try:
                subprocess.run([*start, str(answer)], **where, stdout=log, stderr=log, timeout=limit)
            except subprocess.TimeoutExpired:
                return {"way": spec.way, "error": f"it took longer than {limit:.0f} s"}
            if answer.exists():
                return {"way": spec.way, "losses": json.loads(answer.read_text())}
            log.seek(0)
            return {"way": spec.way, "error": log.read()[-_LOG:]}


def print_curves(points: Sequence[Point], compared: Sequence[dict[str, Any]]) -> None:
    """Prints a row for each run, with some of its losses and its distance from the first one."""
    found = {one["way"]: one for one in compared}
    rows = []
    for point in (point for point in points if "losses" in point):
        losses, one = point["losses"], found.get(point["way"])
        some = [f"{losses[place * (len(losses) - 1) // 3]:.4f}" for place in range(4)]
        rows.append([point["way"], *some, "" if one is None else f"{one['distance']:.1e}"])
    columns = ("<way", "first", "a third", "two thirds", "last", "distance")
    console().print(make_table("losses of training runs", None, columns, rows, wrap=False))
    for one in compared:
        if not one["equal"]:
            click.echo(f"{one['way']}: farther from one process than rounding explains: error")


if __name__ == "__main__":
    main()
