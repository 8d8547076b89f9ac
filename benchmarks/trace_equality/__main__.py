"""Does every model have the very traces that Thunder makes by itself, whichever shortcuts it takes?

Every model at every depth is a fresh process, in which Thunder traces it without shortcuts, then with some groups of
them: all, each by itself, all but each. Compared is the text of all traces: prologue, forward, backward and epilogue,
from the first to the final ones. Nothing is compiled or run. Exit code 1 if a line differs or a model fails.
"""

from __future__ import annotations

import json
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
from benchmarks.common.report import console, make_table, print_line
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.trace_equality.spec import KINDS, Spec


@command(__doc__)
@click.option("--models", type=Words(zoo.names()), help="As in llama-3,hf-bert.  [default: all]")
@click.option("--layers", type=Numbers(real=True), default="2,4,6", help="As in 2,4,real.")
@click.option("--kinds", type=Words(KINDS), default=",".join(KINDS), help="Which sets of groups: see above.")
@backend_option()
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="[default: bfloat16 with a GPU]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes at a time.")
@click.option(
    "--resume", is_flag=True, help="Keep what FILE has of this commit, machine and options but models, layers and jobs."
)
@json_option
def main(json_file: Path | None, resume: bool, **options: Any) -> None:
    """Runs the benchmark."""
    machine = inspect_machine(options["backend"])
    chosen = {**options, "backend": machine.backend}
    points = _read_points(json_file, machine, chosen) if resume else []
    done = {(point["model"], point["layers"]) for point in points}
    specs = [spec for spec in _specs(machine, options) if (spec.model, spec.layers) not in done]
    for spec, point in _run(specs, options["jobs"]):
        points.append(point)
        points.sort(key=lambda point: (zoo.names().index(point["model"]), point["layers"] or sys.maxsize))
        write_result(json_file, make_result(machine.environment, chosen, points=points))
        say(f"{spec}: {point.get('error', 'alike')}\n")
    _print(points, machine.environment["gpu"] or machine.device)
    sys.exit(1 if any("error" in point for point in points) else 0)


def _specs(machine: Machine, options: Mapping[str, Any]) -> Iterator[Spec]:
    for layers in reversed(options["layers"]):  # what takes longest comes first
        for model in options["models"] or zoo.names():
            yield Spec(
                model=model,
                layers=layers,
                backend=machine.backend,
                device=machine.device,
                dtype=options["dtype"] or machine.choose_dtype(model),
                kinds=options["kinds"],
            )


def _run(specs: Sequence[Spec], jobs: int) -> Iterator[tuple[Spec, Point]]:
    """Yields the specs and their points, as they come, while up to ``jobs`` processes work."""
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(_measure, spec): spec for spec in specs}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _measure(spec: Spec) -> Point:
    point: Point = {name: value for name, value in asdict(spec).items() if name != "kinds"}
    try:
        found = processes.call("benchmarks.trace_equality.worker", asdict(spec))
    except processes.ProcessFailed as failure:
        say(f"{spec}: failed, {failure.format_message()}\n")
        return point | {"error": str(failure)}
    return point | found | find_problem(found)


def find_problem(point: Mapping[str, Any]) -> dict[str, str]:
    """Returns ``error`` with what is wrong with a comparison, or nothing."""
    if not point["traces"]:
        return {"error": "there are no traces"}
    if point["differing"]:
        name, first = next(iter(point["differing"].items()))
        where = f"{first['trace']}, line {first['line']}: {first['found']!r} in place of {first['own']!r}"
        return {"error": f"{len(point['differing'])} of {len(point['compared'])} differ, the first is {name}: {where}"}
    return {}


def _read_points(file: Path | None, machine: Machine, options: Mapping[str, Any]) -> list[Point]:
    """Returns the points of an earlier run that was stopped."""
    if file is None or not file.exists():
        return []
    result = json.loads(file.read_text())
    expected = json.loads(json.dumps(make_result(machine.environment, options)))["environment"]
    for environment in (result["environment"], expected):
        for name in ("models", "layers", "jobs"):
            del environment["options"][name]
    points: list[Point] = result["points"]
    return points if result["environment"] == expected else []


def _print(points: Sequence[Point], machine: str) -> None:
    """Prints a table of all points, then what went wrong."""
    out = console()
    columns = ["<model", "layers", "pieces", "traces", "lines", "compared", "differ", "s, none", "s, all"]
    caption = "s: of the processor, with no shortcuts and with all"
    rows = [_cells(point) for point in points]
    out.print(make_table(f"Traces on {machine}", caption, columns, rows, wrap=False, sections=True))
    for point in points:
        if "error" in point:
            print_line(out, f"error: {point['model']}, {point['layers']} layers: {point['error']}")


def _cells(point: Point) -> list[str]:
    cells = [point["model"], str(point["layers"])]
    if "traces" not in point:
        return [*cells, "failed"]
    seconds = point["cpu_seconds"]
    cells += [str(point[name]) for name in ("pieces", "traces", "lines")]
    cells += [str(len(point[name])) for name in ("compared", "differing")]
    shown = (seconds.get("none, again", seconds["none"]), seconds.get("all"))
    return cells + ["" if value is None else f"{value:.1f}" for value in shown]


if __name__ == "__main__":
    main()
