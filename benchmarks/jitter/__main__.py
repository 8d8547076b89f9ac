"""How long the slowest of many later training steps of a narrow Llama take, and why.

The model takes 10,000 steps with Thunder alone, with fusioncache and with torch.compile, each in a fresh process with
empty cache folders, as many as ``--at-once`` says getting ready beside each other before each measures for itself:
alone, and beside the two worker processes of a ``DataLoader`` that makes each step's input. A step
is timed from one synchronization to the next. Before and behind each, counters are read of what may have held it up:
garbage collections, what was compiled or loaded, memory that torch asked CUDA for, page faults, and time in which the
thread did not run. The slowest thousandth are explained by these: by what took more than half of the time above the
median; else the thread was slower at the same work, as where others share its core, its caches or its memory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import click

from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import Words, backend_option, command, json_option, require_litgpt
from benchmarks.common.processes import ProcessFailed
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.common.spec import ModelSpec
from benchmarks.common.turns import call_in_turns
from benchmarks.jitter.spec import BESIDE, WAYS

_QUANTILES = ("median", "0.99", "0.999", "slowest")


@command(__doc__)
@click.option("--layers", type=click.IntRange(min=1), default=2)
@click.option("--ways", type=Words(tuple(WAYS)), default=tuple(WAYS), help="As in thunder,fusioncache.")
@click.option("--beside", type=Words(tuple(BESIDE)), default=tuple(BESIDE), help="As in alone,loader.")
@click.option("--steps", type=click.IntRange(min=1), default=10_000, help="Steps that count.")
@click.option("--at-once", type=click.IntRange(min=1), default=1, help="Processes that get ready beside each other.")
@click.option("--limit", type=click.FloatRange(min=1.0), help="Seconds that each may take, waiting among them.")
@backend_option()
@json_option
def main(
    layers: int,
    ways: Sequence[str],
    beside: Sequence[str],
    steps: int,
    at_once: int,
    limit: float | None,
    backend: str,
    json_file: Path | None,
) -> None:
    """Runs the benchmark."""
    require_litgpt("Llama")
    machine = inspect_machine(backend)
    options = {"layers": layers, "ways": list(ways), "beside": list(beside), "steps": steps, "backend": machine.backend}
    dtype = machine.choose_dtype("llama")
    spec = ModelSpec("llama", layers, machine.backend, machine.device, dtype, steps=steps)
    points: list[Point] = []
    chosen = list(product(ways, beside))
    arguments = [{"way": way, "beside": other, "spec": asdict(spec)} for way, other in chosen]
    answers = call_in_turns("benchmarks.jitter.worker", arguments, at_once, limit)
    for (way, other), answer in zip(chosen, answers, strict=True):
        points.append(_make_point(way, other, answer))
        write_result(json_file, make_result(machine.environment, options, points=points))
    _print(points)
    sys.exit(1 if any("error" in point for point in points) else 0)


def _make_point(way: str, beside: str, answer: Any) -> Point:
    """Returns what one process said; what went wrong if it said nothing."""
    point: Point = {"way": way, "beside": beside}
    if isinstance(answer, ProcessFailed):
        say(f"{way}, {beside}: {answer.message}\n")
        return {**point, "error": answer.message, "log": answer.log}
    times = answer["milliseconds"]
    say(f"{way}, {beside}: {times['median']:.3f} ms, slowest {times['slowest']:.3f}\n")
    return {**point, **answer}


def _print(points: Sequence[Point]) -> None:
    columns = ("<way", "<beside", *(f"{name}, ms" for name in _QUANTILES), "over twice", "<causes of the slowest")
    rows = [
        [
            point["way"],
            point["beside"],
            *(f"{point['milliseconds'][name]:.3f}" for name in _QUANTILES),
            str(point["slower_than_twice"]),
            ", ".join(f"{cause} {count}" for cause, count in sorted(point["causes"].items())),
        ]
        for point in points
        if "error" not in point
    ]
    console().print(make_table("later steps", None, columns, rows))
    for point in points:
        if "error" in point:
            click.echo(f"{point['way']}, {point['beside']}: {point['error']}")


if __name__ == "__main__":
    main()
