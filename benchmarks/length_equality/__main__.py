"""Is every model right at every batch and length, and does it compile nothing from the third one on?

Every model is a fresh process, in which it takes a training step at each batch and length by Thunder alone, then with
fusioncache: ``benchmarks/length_equality/worker.py`` says what is compared. With the backend ``eager`` all bits must be
Thunder's; of others, sums may be added up in another order, so that each tensor may differ by so many epsilons, times
its largest magnitude. Sizes of 1 are never general: settings with one row or one token are counted for themselves. Exit
code 1 if a result differs or is not finite, if anything is compiled from the third setting on, but where the number of
rows first is another one, or if a model fails.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks.common import processes
from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import Lengths, command, json_option
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.length_equality.spec import Spec
from benchmarks.zoo.comparison import compare_all, list_specs, name_point, print_error, zoo_options

_FIRST = 2
"""Settings of a kind that may compile: one at its own sizes, and one for any."""


@command(__doc__)
@zoo_options(layers="2")
@click.option("--batches", type=Lengths(), default=(2, 3, 1), help="Rows, in order.")
@click.option("--lengths", type=Lengths(), default=(64, 96, 65, 200, 128, 257, 1, 8), help="Tokens, in order.")
@click.option("--epsilons", type=click.FloatRange(min=0.0), default=64.0, help="By which sums may differ.")
@json_option
def main(json_file: Path | None, epsilons: float, **options: Any) -> None:
    """Runs the benchmark."""
    machine = inspect_machine(options["backend"])
    more = {"batches": options["batches"], "lengths": options["lengths"]}
    specs = list(list_specs(Spec, machine, options, **more))
    allowed = 0.0 if machine.backend == "eager" else epsilons
    chosen = {**options, "backend": machine.backend, "epsilons": allowed}
    points: list[Point] = []
    for points in compare_all(specs, lambda spec: compare(spec, allowed), options["jobs"]):
        write_result(json_file, make_result(machine.environment, chosen, points=points))
    _print(points, machine.environment["gpu"] or machine.device)
    sys.exit(1 if any("error" in point for point in points) else 0)


def compare(spec: Spec, epsilons: float) -> Point:
    """Compares one model at one depth."""
    point: Point = asdict(spec) | processes.call("benchmarks.length_equality.worker", asdict(spec))
    point |= find_problem(point["steps"], epsilons)
    say(f"{spec}: {point.get('error', 'right')}\n")
    return point


def find_problem(steps: Sequence[Mapping[str, Any]], epsilons: float) -> dict[str, str]:
    """Returns ``error`` with what is wrong with the steps of a model, or nothing."""
    for step in steps:
        where = f"{step['batch']} rows of {step['length']}"
        # What the reference itself computes otherwise the second time says nothing about anyone else.
        differing = [name for name in step["differing"] if name not in step["not_repeatable"]]
        if step["not_finite"]:
            return {"error": f"{where}: {step['not_finite'][0]} is not finite"}
        if differing and step["largest_epsilons"] > epsilons:
            most = f"{step['largest_epsilons']:.3g} epsilons at most"
            return {"error": f"{where}: {len(differing)} tensors differ, the first is {differing[0]}; {most}"}
    for step in list_later(steps):
        if step["compiles"]:
            return {"error": f"{step['batch']} rows of {step['length']}: {step['compiles']} compiled"}
    return {}


def list_later(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the steps from the third one of each kind on, but the first with a second number of rows.

    What is compiled for any length is for the rows that all had so far, until there are others.
    """
    seen: Counter[str] = Counter()
    rows: defaultdict[str, set[int]] = defaultdict(set)
    later = []
    for step in steps:
        known, batch = rows[step["kind"]], step["batch"]
        seen[step["kind"]] += 1
        if seen[step["kind"]] > _FIRST and (batch in known or len(known) > 1):
            later.append(step)
        known.add(batch)
    return later


def _print(points: Sequence[Point], machine: str) -> None:
    columns = ["<model", "layers", "<way", "steps", "tensors", "bitwise", "epsilons"]
    columns += ["compiles", "later", "traces", "later", "replayed", "filled"]
    caption = "later: from the third setting on, of each kind of sizes that are 1"
    rows = [_cells(point) for point in points if "steps" in point]
    out = console()
    out.print(make_table(f"Many batches and lengths on {machine}", caption, columns, rows, wrap=False))
    for point in points:
        print_error(out, point)


def _cells(point: Point) -> list[str]:
    steps = point["steps"]
    sums = [sum(step[name] for step in steps) for name in ("tensors", "bitwise")]
    known = [sum(step[f"programs_{what}"] for step in steps) for what in ("replayed", "filled")]
    largest = max(step["largest_epsilons"] for step in steps)
    counts = [
        sum(step.get(name, 0) for step in some)
        for name in ("compiles", "traces")
        for some in (steps, list_later(steps))
    ]
    return [
        *name_point(point),
        point["way"],
        str(len(steps)),
        *map(str, sums),
        f"{largest:.3g}",
        *map(str, counts),
        *map(str, known),
    ]


if __name__ == "__main__":
    main()
