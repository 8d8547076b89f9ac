"""What a sequence of lengths costs, step by step, beside torch.compile, Thunder, and padding.

Each way is a fresh process with empty cache directories, in which a narrow Llama takes a training step at each of
``--lengths``, then at ``--random`` lengths drawn between the two of ``--between``. Every step is timed, with how often
anything was compiled or traced in it (for torch.compile both are the graphs of Dynamo). In the end the first lengths
are taken again, for the time of a later step and for the error against torch alone.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import click

from benchmarks.common import processes
from benchmarks.common.drawing import SUFFIXES
from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import Lengths, NewFile, Words, backend_option, command, json_option
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.lengths.plot import plot
from benchmarks.lengths.spec import WAYS, LengthsSpec

_SEED = 17


@command(__doc__)
@click.option("--layers", type=click.IntRange(min=1), default=4)
@click.option("--lengths", type=Lengths(), default=(64, 96, 65, 200, 128, 257, 1, 8), help="As in 64,96,65.")
@click.option("--random", "count", type=click.IntRange(min=0), default=200, help="How many more are drawn.")
@click.option("--between", type=(int, int), default=(32, 512), help="The least and the largest of these.")
@click.option("--ways", type=Words(tuple(WAYS)), default=tuple(WAYS), help="As in fusioncache,torch.compile.")
@click.option("--batch", type=click.IntRange(min=1), default=2, help="Rows of tokens.")
@click.option("--later", type=click.IntRange(min=1), default=10, help="Steps that the time of a later step is of.")
@click.option("--limit", type=click.FloatRange(min=1.0), help="Seconds that each way may take.")
@backend_option()
@click.option("--plot", "plot_file", type=NewFile(SUFFIXES), help="Draw the seconds of each step.")
@json_option
def main(
    json_file: Path | None,
    plot_file: Path | None,
    lengths: Sequence[int],
    count: int,
    between: tuple[int, int],
    ways: Sequence[str],
    limit: float | None,
    backend: str,
    **options: Any,
) -> None:
    """Runs the benchmark."""
    if not 0 < between[0] <= between[1]:
        raise click.BadParameter(f"{between[0]} {between[1]} is no range of lengths", param_hint="--between")
    machine = inspect_machine(backend)
    drawn = random.Random(_SEED)
    whole = (*lengths, *(drawn.randint(*between) for _ in range(count)))
    common = {"backend": machine.backend, "device": machine.device, "dtype": machine.choose_dtype("llama"), **options}
    points: list[Point] = []
    for way in ways:
        spec = LengthsSpec(way=way, lengths=whole, again=len(lengths), **common)
        points.append(_run(spec, limit))
        chosen = {**common, "lengths": list(lengths), "random": count, "between": list(between)}
        result = make_result(machine.environment, chosen, points=points)
        write_result(json_file, result)
        if plot_file:
            plot(result, plot_file)
    _print(points, lengths)
    sys.exit(1 if any("error" in point for point in points) else 0)


def _run(spec: LengthsSpec, limit: float | None) -> Point:
    """Returns what one way's process said; what went wrong if it said nothing."""
    try:
        environment = WAYS[spec.way].environment
        found = processes.call("benchmarks.lengths.worker", asdict(spec), environment=environment, limit=limit)
    except processes.ProcessFailed as failure:
        say(f"{spec.way}: {failure.message}\n")
        return {"way": spec.way, "error": failure.message, "log": failure.log}
    say(f"{spec.way}: {sum(step['seconds'] for step in found['steps']):.1f} s for {len(spec.lengths)} steps\n")
    return {"way": spec.way, **found}


def _print(points: Sequence[Point], lengths: Sequence[int]) -> None:
    columns = ("<way", *map(str, lengths), "mean of the others", "compiles", "traces", "later step, ms", "worst error")
    good = [point for point in points if "error" not in point]
    caption = "seconds of the first step of each length, in this order; compiles and traces from the third on"
    console().print(
        make_table("steps at many lengths", caption, columns, [_row(point, len(lengths)) for point in good])
    )
    for point in points:
        if "error" in point:
            click.echo(f"{point['way']}: {point['error']}")


def _row(point: Mapping[str, Any], first: int) -> list[str]:
    steps, later = point["steps"], point["later"]
    others = [step["seconds"] for step in steps[first:]]
    counts = [str(sum(step[name] for step in steps[2:])) for name in ("compiles", "traces")]
    return [
        point["way"],
        *(f"{step['seconds']:.3f}" for step in steps[:first]),
        f"{mean(others):.3f}" if others else "",
        *counts,
        f"{mean(each['step_ms'] for each in later):.2f}",
        f"{max(each['error'] for each in later):.1e}",
    ]


if __name__ == "__main__":
    main()
