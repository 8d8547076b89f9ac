"""Is every model right, bit for bit, and how many templates does it have at which depth?

Every model at every depth is a fresh process, in which Thunder trains it without and with fusioncache:
``benchmarks/model_equality_worker.py`` says what is compared. Exit code 1 if a result differs or is not finite, if a
model fails, or if its templates grow with its depth.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks import zoo
from benchmarks.common import processes
from benchmarks.common.hardware import look
from benchmarks.common.options import Modes, NewFile
from benchmarks.equality import report
from benchmarks.equality.spec import REFERENCES, Depths, Point

SCHEMA = 1

Row = dict[str, Any]
"""A point as it is in the JSON: its options, what its process found, and ``error`` if something is wrong."""


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--models", type=Modes(zoo.names()), help="As in llama-3,hf-bert.  [default: all]")
@click.option("--layers", type=Depths(), default="2,3", help="As in 2,4,real; real is the configuration's own number.")
@click.option(
    "--reference", type=click.Choice(REFERENCES), default="plain", help="Thunder, or with nvFuser's own cache."
)
@click.option("--backend", type=click.Choice(["auto", "nvfuser", "inductor", "eager"]), default="auto")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="[default: bfloat16 with a GPU]")
@click.option("--width", type=click.Choice(["narrow", "real"]), default="narrow", help="Of the layers.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes at a time.")
@click.option("--host-time", is_flag=True, help="Take the host time of a step as well.")
@click.option("--rounds", type=click.IntRange(min=1), default=30, help="Steps of each kind for --host-time.")
@click.option("--json", "json_file", type=NewFile(), metavar="FILE", help="Write the result as one JSON object.")
def main(json_file: Path | None, **options: Any) -> None:
    here = look(options["backend"])
    if options["reference"] == "lru" and here["backend"] != "nvfuser":
        raise click.UsageError("--reference lru is nvFuser's own cache, which is for --backend nvfuser")
    points = list(_points(here, options))
    found: dict[Point, Row] = {}
    rows: list[Row] = []
    for point, row in run(points, options["jobs"]):
        found[point] = row
        rows = [found[point] for point in points if point in found]
        if json_file:
            json_file.write_text(json.dumps(_result(here, options, rows), indent=1) + "\n")
    mark_growth(rows)
    if json_file:
        json_file.write_text(json.dumps(_result(here, options, rows), indent=1) + "\n")
    report.print_rows(rows, here["environment"]["gpu"] or here["device"])
    sys.exit(1 if any("error" in row for row in rows) else 0)


def _points(here: dict[str, Any], options: dict[str, Any]) -> Iterator[Point]:
    for model in options["models"] or zoo.names():
        for layers in options["layers"]:
            yield Point(
                model=model,
                layers=layers,
                reference=options["reference"],
                backend=here["backend"],
                device=here["device"],
                dtype=options["dtype"] or ("bfloat16" if here["device"] == "cuda" else "float32"),
                width=options["width"],
                rounds=options["rounds"] * options["host_time"],
            )


def run(points: Sequence[Point], jobs: int) -> Iterator[tuple[Point, Row]]:
    """The points and their rows, as they come, while up to ``jobs`` processes work."""
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(_row, point): point for point in points}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _row(point: Point) -> Row:
    row: Row = asdict(point)
    try:
        row |= processes.call("benchmarks.equality.worker", asdict(point))
    except processes.ProcessFailed as failure:
        _say(f"{point}: failed, {failure}\n{failure.log}\n")
        return row | {"error": str(failure)}
    problem = problem_of(row)
    _say(f"{point}: {row['bitwise']} of {row['tensors']} tensors bitwise, {row['templates']} templates\n")
    return row | ({"error": problem} if problem else {})


def problem_of(row: Row) -> str | None:
    """What is wrong with a comparison, or None."""
    if row["regions"] == 0:  # Dynamo, say, gave up and ran the model as it is
        return "there are no regions to share"
    if row["not_finite"]:
        return f"not finite: {row['not_finite'][0]}"
    # What the reference itself computes otherwise the second time says nothing about anyone else.
    differing = [name for name in row["differing"] if name not in row["not_repeatable"]]
    if differing:
        largest = f"{row['largest_epsilons']:.3g} epsilons at most"
        return f"{len(differing)} of {row['tensors']} differ, the first is {differing[0]}; {largest}"
    return None


def mark_growth(rows: Sequence[Row]) -> None:
    """Marks each row with more templates than the shallowest one of its model that has them all."""
    first: dict[str, Row] = {}
    for row in rows:
        if "templates" not in row or row["layers"] < zoo.entry(row["model"]).steady:
            continue
        base = first.setdefault(row["model"], row)
        if row["templates"] > base["templates"]:
            grown = f"{row['templates']} templates, at {base['layers']} layers {base['templates']}"
            row["error"] = f"{row['error']}; {grown}" if "error" in row else grown


def _result(here: dict[str, Any], options: dict[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    environment = here["environment"] | {"options": {**options, "backend": here["backend"]}}
    return {"schema": SCHEMA, "environment": environment, "points": list(rows)}


def _say(text: str) -> None:
    click.echo(text, err=True, nl=False)


if __name__ == "__main__":
    main()
