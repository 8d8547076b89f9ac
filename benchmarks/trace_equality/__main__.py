"""Does every model have the very traces that Thunder makes by itself, whichever shortcuts it takes?

Every model at every depth is a fresh process, in which Thunder traces it without shortcuts, then with some groups of
them: all, each by itself, all but each. Compared is the text of all traces: prologue, forward, backward and epilogue,
from the first to the final ones. Nothing is compiled or run. Exit code 1 if a line differs or a model fails.
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
from benchmarks.common.options import Words, command, json_option
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.common.resume import read_finished
from benchmarks.trace_equality.spec import KINDS, Spec
from benchmarks.zoo.comparison import compare_all, list_specs, name_point, print_error, zoo_options


@command(__doc__)
@zoo_options(layers="2,4,6")
@click.option("--kinds", type=Words(KINDS), default=",".join(KINDS), help="Which sets of groups: see above.")
@click.option(
    "--resume", is_flag=True, help="Keep what FILE has of this commit, machine and options but models, layers and jobs."
)
@json_option
def main(json_file: Path | None, resume: bool, **options: Any) -> None:
    """Runs the benchmark."""
    machine = inspect_machine(options["backend"])
    chosen = {**options, "backend": machine.backend}
    may_differ = {"models", "layers", "jobs"}
    before = read_finished(json_file, machine.environment, chosen, may_differ) if resume else []
    done = {(point["model"], point["layers"]) for point in before}
    specs = list_specs(Spec, machine, options, kinds=options["kinds"])
    left = [spec for spec in specs if (spec.model, spec.layers) not in done]
    left.sort(key=lambda spec: -_depth(spec.layers))  # what takes longest comes first
    points = before
    for found in compare_all(left, compare, options["jobs"]):
        points = sorted(
            [*before, *found], key=lambda point: (zoo.names().index(point["model"]), _depth(point["layers"]))
        )
        write_result(json_file, make_result(machine.environment, chosen, points=points))
    _print(points, machine.environment["gpu"] or machine.device)
    sys.exit(1 if any("error" in point for point in points) else 0)


def _depth(layers: int | None) -> int:
    return sys.maxsize if layers is None else layers


def compare(spec: Spec) -> Point:
    """Compares the traces of one model at one depth."""
    point: Point = {name: value for name, value in asdict(spec).items() if name != "kinds"}
    point |= processes.call("benchmarks.trace_equality.worker", asdict(spec))
    point |= find_problem(point)
    say(f"{spec}: {point.get('error', 'alike')}\n")
    return point


def find_problem(point: Mapping[str, Any]) -> dict[str, str]:
    """Returns ``error`` with what is wrong with a comparison, or nothing."""
    if not point["traces"]:
        return {"error": "there are no traces"}
    if point["differing"]:
        name, first = next(iter(point["differing"].items()))
        where = f"{first['trace']}, line {first['line']}: {first['found']!r} in place of {first['own']!r}"
        return {"error": f"{len(point['differing'])} of {len(point['compared'])} differ, the first is {name}: {where}"}
    return {}


def _print(points: Sequence[Point], machine: str) -> None:
    """Prints a table of all points, then what went wrong."""
    out = console()
    columns = ["<model", "layers", "pieces", "traces", "lines", "compared", "differ", "s, none", "s, all"]
    caption = "s: of the processor, with no shortcuts and with all"
    rows = [_cells(point) for point in points]
    out.print(make_table(f"Traces on {machine}", caption, columns, rows, wrap=False, sections=True))
    for point in points:
        print_error(out, point)


def _cells(point: Point) -> list[str]:
    cells = name_point(point)
    if "traces" not in point:
        return [*cells, "failed"]
    seconds = point["cpu_seconds"]
    cells += [str(point[name]) for name in ("pieces", "traces", "lines")]
    cells += [str(len(point[name])) for name in ("compared", "differing")]
    shown = (seconds.get("none, again", seconds["none"]), seconds.get("all"))
    return cells + ["" if value is None else f"{value:.1f}" for value in shown]


if __name__ == "__main__":
    main()
