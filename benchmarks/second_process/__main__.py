"""What a second process waits for before its first step is done, part by part, beside Thunder and torch.compile.

Each time a fresh process with empty cache directories takes one training step, then another with those that it left.
``thunder`` keeps nothing. ``templates`` is fusioncache without programs: the second process traces the model
again. ``programs`` is fusioncache as it is. Imports, the device's start and what a process pays once for its compiler
are no part of any figure. ``benchmarks/second_process/spec.py`` says what the parts are. All processes but those of
``torch.compile`` must compute the same bits.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
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
from benchmarks.common.results import Outcome, Point, make_result, say, write_result
from benchmarks.common.spec import MODELS, ModelSpec
from benchmarks.first_step.spec import WIDTHS, PointSpec
from benchmarks.second_process.spec import COLD, PARTS, WARM, WAYS, Way

_Found = dict[tuple[int, str, str], list[Mapping[str, Any]]]
"""What processes said, by layers, way and which process of a pair they were."""


@command(__doc__)
@click.option("--model", type=click.Choice(MODELS), default="llama")
@click.option("--width", type=click.Choice(WIDTHS), default="narrow", help="real: Llama-2-7b, 1 x 2048 tokens.")
@click.option("--layers", type=Numbers(), default=(8, 32), help="As in 8,32.")
@click.option("--ways", type=Words(tuple(WAYS)), default=tuple(WAYS), help="As in templates,programs.")
@backend_option()
@repeat_option("Pairs of processes; the median counts.")
@json_option
def main(
    json_file: Path | None,
    model: str,
    width: str,
    layers: Sequence[int],
    ways: Sequence[str],
    backend: str,
    repeat: int,
) -> None:
    """Runs the benchmark."""
    machine = inspect_machine(backend)
    dtype = machine.choose_dtype(model)
    options = {"model": model, "width": width, "dtype": dtype, "backend": machine.backend, "repeat": repeat}
    found: _Found = {}
    outcome = Outcome()
    for _ in range(repeat):
        for depth in layers:
            spec = ModelSpec(model, depth, machine.backend, machine.device, dtype)
            for name in ways:
                _run_pair(PointSpec(spec, width, WAYS[name].tracing, store=True), WAYS[name], found)
                outcome.points = _list_points(found)
                write_result(json_file, make_result(machine.environment, options, points=outcome.points))
    _print(outcome.points)
    sys.exit(1 if outcome.failed else 0)


def _run_pair(spec: PointSpec, way: Way, found: _Found) -> None:
    """Runs a process with empty cache directories and, if it leaves anything in them, another one."""
    with TemporaryDirectory(prefix="fusioncache-second-") as directory:
        for kind in (COLD, WARM) if way.keeps else (COLD,):
            said = _call(spec, way, Path(directory))
            found.setdefault((spec.model.layers, way.name, kind), []).append(said)
            shown = said.get("error") or f"{said['seconds']['total']:.2f} s"
            say(f"{spec.model}, {way.name}, {kind}: {shown}\n")


def _call(spec: PointSpec, way: Way, caches: Path) -> Mapping[str, Any]:
    try:
        said = processes.call(way.worker, asdict(spec), caches=caches, environment=way.environment)
    except processes.ProcessFailed as failure:
        return {"error": str(failure)}
    return said if "seconds" in said else {"seconds": said}


def _list_points(found: _Found) -> list[Point]:
    return [_describe_point(*where, said, found) for where, said in found.items()]


def _describe_point(layers: int, way: str, kind: str, said: Sequence[Mapping[str, Any]], found: _Found) -> Point:
    """Returns one point: medians of what its processes said, and whether they computed what all others did."""
    point: Point = {"layers": layers, "way": way, "process": kind}
    errors = [one["error"] for one in said if "error" in one]
    if errors:
        return point | {"error": errors[0]}
    names = [name for name in (*PARTS, "total") if name in said[0]["seconds"]]
    point["seconds"] = {name: median(one["seconds"][name] for one in said) for name in names}
    digests = {one["digest"] for where, each in found.items() if where[0] == layers for one in each if "digest" in one}
    if "digest" in said[0]:
        point["correct"] = len(digests) == 1
    return point | {"repeats": said}


def _print(points: Sequence[Point]) -> None:
    columns = ("layers", "<way", "<process", *PARTS, "total")
    rows = [_row(point) for point in points if "seconds" in point]
    console().print(make_table("seconds to the end of the first step", None, columns, rows))
    for point in points:
        where = f"{point['layers']} layers, {point['way']}, {point['process']}"
        if "error" in point:
            click.echo(f"{where}: {point['error']}")
        elif point.get("correct") is False:
            click.echo(f"{where}: error: the bits of the processes differ")


def _row(point: Point) -> list[str]:
    parts = (point["seconds"].get(name) for name in (*PARTS, "total"))
    times = ["" if seconds is None else f"{seconds:.3f}" for seconds in parts]
    return [str(point["layers"]), point["way"], point["process"], *times]


if __name__ == "__main__":
    main()
