"""Is every model right, bit for bit, and how many templates does it have at which depth?

Every model at every depth is a fresh process, in which Thunder trains it without and with fusioncache:
``benchmarks/equality/worker.py`` says what is compared. Exit code 1 if a result differs or is not finite, if a
model fails, or if its templates grow with its depth.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks import zoo
from benchmarks.common import processes
from benchmarks.common.environment import Machine, inspect_machine
from benchmarks.common.options import Numbers, Words, backend_option, command, json_option
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.equality import report
from benchmarks.equality.spec import REFERENCES, Spec


@command(__doc__)
@click.option("--models", type=Words(zoo.names()), help="As in llama-3,hf-bert.  [default: all]")
@click.option(
    "--layers", type=Numbers(real=True), default="2,3", help="As in 2,4,real; real is the configuration's own number."
)
@click.option(
    "--reference", type=click.Choice(REFERENCES), default="plain", help="Thunder, or with nvFuser's own cache."
)
@backend_option()
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="[default: bfloat16 with a GPU]")
@click.option("--width", type=click.Choice(["narrow", "real"]), default="narrow", help="Of the layers.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes at a time.")
@click.option("--host-time", is_flag=True, help="Take the host time of a step as well.")
@click.option("--rounds", type=click.IntRange(min=1), default=30, help="Steps of each kind for --host-time.")
@json_option
def main(json_file: Path | None, **options: Any) -> None:
    """Runs the benchmark."""
    machine = inspect_machine(options["backend"])
    if options["reference"] == "lru" and machine.backend != "nvfuser":
        raise click.UsageError("--reference lru is nvFuser's own cache, which is for --backend nvfuser")
    specs = list(_specs(machine, options))
    chosen = {**options, "backend": machine.backend}
    found: dict[Spec, Point] = {}
    points: list[Point] = []
    for spec, point in run(specs, options["jobs"]):
        found[spec] = point
        points = [found[spec] for spec in specs if spec in found]
        write_result(json_file, make_result(machine.environment, chosen, points=points))
    mark_growth(points)
    write_result(json_file, make_result(machine.environment, chosen, points=points))
    report.print_points(points, machine.environment["gpu"] or machine.device)
    sys.exit(1 if any("error" in point for point in points) else 0)


def _specs(machine: Machine, options: Mapping[str, Any]) -> Iterator[Spec]:
    for model in options["models"] or zoo.names():
        for layers in options["layers"]:
            yield Spec(
                model=model,
                layers=layers,
                reference=options["reference"],
                backend=machine.backend,
                device=machine.device,
                dtype=options["dtype"] or machine.choose_dtype(model),
                width=options["width"],
                rounds=options["rounds"] * options["host_time"],
            )


def run(specs: Sequence[Spec], jobs: int) -> Iterator[tuple[Spec, Point]]:
    """Yields the specs and their points, as they come, while up to ``jobs`` processes work."""
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(_measure, spec): spec for spec in specs}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _measure(spec: Spec) -> Point:
    point: Point = asdict(spec)
    try:
        point |= processes.call("benchmarks.equality.worker", asdict(spec))
    except processes.ProcessFailed as failure:
        say(f"{spec}: failed, {failure.format_message()}\n")
        return point | {"error": str(failure)}
    problem = find_problem(point)
    say(f"{spec}: {point['bitwise']} of {point['tensors']} tensors bitwise, {point['templates']} templates\n")
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
