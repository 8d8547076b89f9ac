"""What a second process waits for before its first step is done, part by part, beside Thunder and torch.compile.

Each time a fresh process with empty cache directories takes one training step, then another with those that it left.
``thunder`` keeps nothing. ``templates`` is fusioncache without programs: the second process traces the model
again. ``programs`` is fusioncache as it is. Imports, the device's start and what a process pays once for its compiler
are no part of any figure. ``benchmarks/second_process/spec.py`` says what the parts are. All processes but those of
``torch.compile`` must compute the same bits, under torch's deterministic algorithms.

What takes longest and says least, processes that keep nothing, is run last. The JSON is written after each process, and
a process that fails costs its own results only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
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


@command(__doc__)
@click.option("--model", type=click.Choice(MODELS), default="llama")
@click.option("--width", type=click.Choice(WIDTHS), default="narrow", help="real: Llama-2-7b, 1 x 2048 tokens.")
@click.option("--layers", type=Numbers(), default=(8, 32), help="As in 8,32.")
@click.option("--ways", type=Words(tuple(WAYS)), default=tuple(WAYS), help="As in templates,programs.")
@backend_option()
@repeat_option("Pairs of processes; the median counts.")
@click.option("--limit", type=click.FloatRange(min=1.0), help="Seconds that all processes together may take.")
@json_option
def main(
    json_file: Path | None,
    model: str,
    width: str,
    layers: Sequence[int],
    ways: Sequence[str],
    backend: str,
    repeat: int,
    limit: float | None,
) -> None:
    """Runs the benchmark."""
    machine = inspect_machine(backend)
    dtype = machine.choose_dtype(model)
    options = {"model": model, "width": width, "dtype": dtype, "backend": machine.backend, "repeat": repeat}
    outcome = Outcome()

    def keep(points: list[Point]) -> None:
        outcome.points = points
        write_result(json_file, make_result(machine.environment, options, points=points))

    series = _Series(keep, None if limit is None else time.monotonic() + limit)
    pairs = sorted(product(layers, map(WAYS.__getitem__, ways)), key=lambda pair: not pair[1].keeps)
    for _, (depth, way) in product(range(repeat), pairs):
        spec = ModelSpec(model, depth, machine.backend, machine.device, dtype)
        series.run_pair(PointSpec(spec, width, way.tracing, store=True), way)
    _print(outcome.points)
    sys.exit(1 if outcome.failed else 0)


_Found = dict[tuple[int, str, str], list[Mapping[str, Any]]]
"""What processes said, by layers, way and which process of a pair they were."""


@dataclass(slots=True)
class _Series:
    """Processes, one after the other, and what they said so far.

    Attributes:
        keep: gets all points after each process.
        deadline: when the last process is ended; None for never.
        found: what processes said.
    """

    keep: Callable[[list[Point]], None]
    deadline: float | None
    found: _Found = field(default_factory=dict)

    def run_pair(self, spec: PointSpec, way: Way) -> None:
        """Runs a process with empty cache directories and, if it leaves anything in them, another one."""
        # What helped the first process may still write when it has ended.
        with TemporaryDirectory(prefix="fusioncache-second-", ignore_cleanup_errors=True) as directory:
            said: Mapping[str, Any] = {}
            for kind in (COLD, WARM) if way.keeps else (COLD,):
                failed = "error" in said
                said = {"error": "not run: the first process failed"} if failed else self._call(spec, way, directory)
                self.found.setdefault((spec.model.layers, way.name, kind), []).append(said)
                shown = said.get("error") or f"{said['seconds']['total']:.2f} s"
                say(f"{spec.model}, {way.name}, {kind}: {shown}\n")
                self.keep(_list_points(self.found))

    def _call(self, spec: PointSpec, way: Way, caches: str) -> Mapping[str, Any]:
        limit = None if self.deadline is None else self.deadline - time.monotonic()
        if limit is not None and limit <= 0:
            return {"error": "not run: there was no time left"}
        about: dict[str, Any] = {"caches": Path(caches), "environment": way.environment, "limit": limit}
        try:
            said: Mapping[str, Any] = processes.call(way.worker, asdict(spec), **about)
        except processes.ProcessFailed as failure:
            return {"error": failure.message, "log": failure.log}
        return said if "seconds" in said else {"seconds": said}


def _list_points(found: _Found) -> list[Point]:
    """Returns the points by depth, the ways of each in the order in which they are compared."""
    names = list(WAYS)
    places = sorted(found, key=lambda where: (where[0], names.index(where[1]), where[2]))
    return [_describe_point(*where, found[where], found) for where in places]


def _describe_point(layers: int, way: str, kind: str, said: Sequence[Mapping[str, Any]], found: _Found) -> Point:
    """Returns one point: medians of what its processes said, and whether they computed what all others did."""
    point: Point = {"layers": layers, "way": way, "process": kind}
    errors, good = [one for one in said if "error" in one], [one for one in said if "error" not in one]
    if errors:
        point |= {"error": errors[0]["error"], "log": errors[0].get("log", "")}
    if not good:
        return point
    names = [name for name in (*PARTS, "total") if name in good[0]["seconds"]]
    point["seconds"] = {name: median(one["seconds"][name] for one in good) for name in names}
    digests = {one["digest"] for where, each in found.items() if where[0] == layers for one in each if "digest" in one}
    if "digest" in good[0]:
        point["correct"] = len(digests) == 1
    return point | {"repeats": good}


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
