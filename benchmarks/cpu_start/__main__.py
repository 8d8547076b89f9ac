"""The first and the second start of a model on a machine without a GPU.

Each way runs the first training step of a small model in a process with empty caches, and then in one with the caches
that this left. Seconds are those of processors, of the process and of all that it waited for, such as a C++ compiler:
the wall clock depends on how many cores there are, and how busy they are. Importing Thunder is before the step.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.common.environment import describe
from benchmarks.common.options import Words, command, json_option
from benchmarks.common.processes import ProcessFailed, call
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.zoo import names

_WORKER = "benchmarks.cpu_start.worker"
WAYS = ("thunder", "thunder-compiling", "torch.compile", "fusioncache", "fusioncache-eager")
"""How a model is compiled: by Thunder with its default executors, or with ``torch_compile_ex``, and so on."""


@command(__doc__)
@click.option("--models", type=Words(names()), default="pythia,llama-2,hf-gpt2,gemma", help="Of benchmarks/zoo.")
@click.option("--layers", type=int, default=2, help="Of each model.")
@click.option("--ways", type=Words(WAYS), default=",".join(WAYS), help="How each is compiled.")
@click.option("--at-once", type=int, default=1, help="How many processes run at once: seconds are of processors.")
@json_option
def main(models: tuple[str, ...], layers: int, ways: tuple[str, ...], at_once: int, json_file: Path | None) -> None:
    """Runs the benchmark."""
    options = {"models": list(models), "layers": layers, "ways": list(ways), "at_once": at_once}
    points: list[Point] = []
    with ThreadPoolExecutor(at_once) as pool:
        for found in pool.map(lambda pair: _measure(pair[0], layers, pair[1]), product(models, ways)):
            points += found
            write_result(json_file, make_result(describe(), options, points=points))
    columns = ("<model", "<way", "start", "seconds", "wall", "compiles", "loads", "later step, ms")
    console().print(make_table("starts on a CPU", None, columns, [_list_cells(point) for point in points]))
    sys.exit(1 if any("error" in point for point in points) else 0)


def _measure(model: str, layers: int, way: str) -> list[Point]:
    """Returns a point for the first start, and one for the second."""
    points: list[Point] = []
    with TemporaryDirectory(prefix="fusioncache-benchmark-") as caches:
        for start in ("first", "second"):
            say(f"{model}, {way}, {start} start\n")
            point: Point = {"model": model, "way": way, "start": start}
            try:
                points.append(
                    point | call(_WORKER, {"model": model, "layers": layers, "way": way}, caches=Path(caches))
                )
            except ProcessFailed as failure:
                say(f"{failure.message}\n")
                points.append({**point, "error": failure.message, "log": failure.log})
    return points


def _list_cells(point: Point) -> list[Any]:
    cells = [point["model"], point["way"], point["start"]]
    if "error" in point:
        return [*cells, "failed", *[""] * 4]
    seconds = f"{point['own_s'] + point['children_s']:.2f}"
    counts = [str(point.get(name, "")) for name in ("compiles", "loads")]
    return [*cells, seconds, f"{point['wall_s']:.1f}", *counts, f"{point['step_ms']:.2f}"]


if __name__ == "__main__":
    main()
