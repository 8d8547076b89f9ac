"""Is every model right, bit for bit, and how many templates does it have at which depth?

Every model at every depth is a fresh process, in which Thunder trains it without and with fusioncache:
``benchmarks/equality/worker.py`` says what is compared. Exit code 1 if a result differs or is not finite, if a
model fails, or if its templates grow with its depth.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks import zoo
from benchmarks.common import processes
from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import command, json_option
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.equality import report
from benchmarks.equality.spec import REFERENCES, Spec
from benchmarks.zoo.comparison import compare_all, list_specs, zoo_options


@command(__doc__)
@zoo_options(layers="2,3")
@click.option(
    "--reference", type=click.Choice(REFERENCES), default="plain", help="Thunder, or with nvFuser's own cache."
)
@click.option("--width", type=click.Choice(["narrow", "real"]), default="narrow", help="Of the layers.")
@click.option("--host-time", is_flag=True, help="Take the host time of a step as well.")
@click.option("--rounds", type=click.IntRange(min=1), default=30, help="Steps of each kind for --host-time.")
@json_option
def main(json_file: Path | None, **options: Any) -> None:
    """Runs the benchmark."""
    machine = inspect_machine(options["backend"])
    if options["reference"] == "lru" and machine.backend != "nvfuser":
        raise click.UsageError("--reference lru is nvFuser's own cache, which is for --backend nvfuser")
    rounds = options["rounds"] * options["host_time"]
    more = {"reference": options["reference"], "width": options["width"], "rounds": rounds}
    specs = list(list_specs(Spec, machine, options, **more))
    chosen = {**options, "backend": machine.backend}
    points: list[Point] = []
    for points in compare_all(specs, compare, options["jobs"]):
        write_result(json_file, make_result(machine.environment, chosen, points=points))
    mark_growth(points)
    write_result(json_file, make_result(machine.environment, chosen, points=points))
    report.print_points(points, machine.environment["gpu"] or machine.device)
    sys.exit(1 if any("error" in point for point in points) else 0)


def compare(spec: Spec) -> Point:
    """Compares one model at one depth."""
    point: Point = asdict(spec) | processes.call("benchmarks.equality.worker", asdict(spec))
    say(f"{spec}: {point['bitwise']} of {point['tensors']} tensors bitwise, {point['templates']} templates\n")
    problem = find_problem(point)
    return point | ({"error": problem} if problem else {})


def find_problem(point: Mapping[str, Any]) -> str | None:
    """Returns what is wrong with a comparison, or None."""
    if point["regions"] == 0:  # Dynamo, say, gave up and ran the model as it is
        return "there are no regions to share"
    if point["not_finite"]:
        return f"not finite: {point['not_finite'][0]}"
    # What the reference itself computes otherwise the second time says nothing about anyone else.
    differing = [name for name in point["differing"] if name not in point["not_repeatable"]]
    if differing:
        largest = f"{point['largest_epsilons']:.3g} epsilons at most"
        return f"{len(differing)} of {point['tensors']} differ, the first is {differing[0]}; {largest}"
    return None


def mark_growth(points: Sequence[Point]) -> None:
    """Marks each point with more templates than the shallowest one of its model that has them all."""
    first: dict[str, Point] = {}
    for point in points:
        if "templates" not in point or point["layers"] < zoo.find_entry(point["model"]).steady:
            continue
        base = first.setdefault(point["model"], point)
        if point["templates"] > base["templates"]:
            grown = f"{point['templates']} templates, at {base['layers']} layers {base['templates']}"
            point["error"] = f"{point['error']}; {grown}" if "error" in point else grown


if __name__ == "__main__":
    main()
