"""Where the seconds of a first step go: Thunder's interpreter and passes one by one, fusioncache, compiling, running.

Every point is a fresh process with empty cache directories. ``benchmarks/first_step/worker.py`` says what the phases
are. ``--tracing own`` is Thunder's own tracing, ``fast`` is that of ``FusionCache(fast_tracing=True)``, ``before`` that
of an earlier state of the code, and ``torch.compile`` traces and compiles otherwise: ``benchmarks/first_step/peer.py``.
Imports, the device's start and what a process pays once for its compiler are no part of any figure.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import Numbers, Words, backend_option, command, json_option, repeat_option
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Outcome, Point, make_result, write_result
from benchmarks.common.spec import MODELS, ModelSpec
from benchmarks.first_step.run import Seconds, run_all
from benchmarks.first_step.spec import PARTS, PASSES, PHASES, STARTS, TRACINGS, WIDTHS, PointSpec

_SHORT = {"rematerialize": "remat", "fusioncache": "ours", "after_trace": "after trace"}
_TABLES: Mapping[str, Sequence[str]] = {
    "seconds of tracing, forward and backward": PASSES,
    "seconds of a first step": ("trace", "compile", "after_trace", "total"),
}


@command(__doc__)
@click.option("--model", type=click.Choice(MODELS), default="llama")
@click.option("--width", type=click.Choice(WIDTHS), default="narrow", help="real: Llama-2-7b, 1 x 2048 tokens.")
@click.option("--layers", type=Numbers(), default=(8, 16, 32), help="As in 8,16,32.")
@click.option("--tracing", type=Words(TRACINGS), default=("own", "fast"), help="As in own,fast,before,torch.compile.")
@click.option("--own-layers", type=Numbers(), help="Of the points with Thunder's own tracing, which is slow.")
@click.option("--before", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Root of commit 174f39c.")
@click.option("--jobs", type=Numbers(least=0), help="Of the points with fast: as in 0,1,2,4,8.  [default: its own]")
@click.option("--start", type=Words(STARTS), default=("hidden",), help="Of the jobs: while Thunder traces, or before.")
@click.option("--store/--no-store", default=True, help="Whether fusioncache keeps what it compiles.")
@click.option("--recompute/--no-recompute", default=False, help="As NVIDIA/Fuser#2916.")
@backend_option()
@repeat_option()
@click.option("--parallel", type=click.IntRange(min=1), default=1, help="Points at once, each on cores of its own.")
@json_option
def main(json_file: Path | None, repeat: int, parallel: int, before: Path | None, **options: Any) -> None:
    """Runs the benchmark."""
    if "before" in options["tracing"] and (before is None or options["width"] == "real"):
        raise click.UsageError("--tracing before needs --before, and knows the narrow width only")
    machine = inspect_machine(options["backend"])
    dtype = machine.choose_dtype(options["model"])
    model = ModelSpec(options["model"], 0, machine.backend, machine.device, dtype, options["recompute"])
    specs = list(_list_points(model, **options))
    found: dict[PointSpec, list[Seconds | str]] = {spec: [] for spec in specs}
    common = {name: value for name, value in asdict(model).items() if name != "layers"}
    common |= {name: options[name] for name in ("width", "store")} | {"parallel": parallel, "repeat": repeat}
    outcome = Outcome()

    def save(spec: PointSpec, seconds: Seconds | str) -> None:
        found[spec].append(seconds)
        outcome.points = [_describe_point(one, said) for one, said in found.items() if said]
        write_result(json_file, make_result(machine.environment, common, points=outcome.points))

    run_all(specs * repeat, parallel, before and before.resolve(), save)
    _print(outcome.points)
    sys.exit(1 if outcome.failed else 0)


def _list_points(model: ModelSpec, /, **options: Any) -> Iterator[PointSpec]:
    """Returns the points in the order in which they are run: those of one depth take turns."""
    for layers in sorted({*options["layers"], *(options["own_layers"] or ())}):
        here = ModelSpec(**{**asdict(model), "layers": layers})
        for tracing in options["tracing"]:
            depths = options["own_layers"] if tracing == "own" and options["own_layers"] else options["layers"]
            if layers in depths:
                for jobs, start in _list_jobs(tracing, options["jobs"], options["start"]):
                    yield PointSpec(here, options["width"], tracing, jobs, start, options["store"])


def _list_jobs(tracing: str, jobs: Sequence[int] | None, start: Sequence[str]) -> list[tuple[int | None, str]]:
    """Returns how many processes compile beside, and how they start. Without any the second makes no difference."""
    if tracing != "fast" or jobs is None:
        return [(None, STARTS[0])]
    return [(count, how) for count, how in product(jobs, start) if count or how == start[0]]


def _describe_point(spec: PointSpec, said: Sequence[Seconds | str]) -> Point:
    """Returns one point: medians of what its processes said."""
    point: Point = {"layers": spec.model.layers, "tracing": spec.tracing, "jobs": spec.jobs, "start": spec.start}
    errors = [one for one in said if isinstance(one, str)]
    if errors:
        return point | {"error": errors[0]}
    measured = [one for one in said if not isinstance(one, str)]
    names = [name for name in (*PHASES, *PARTS) if name in measured[0] or spec.tracing != "torch.compile"]
    seconds = {name: median(one.get(name, 0.0) for one in measured) for name in names}
    return point | {"seconds": seconds, "repeats": measured}


def _print(points: Sequence[Point]) -> None:
    for title, names in _TABLES.items():
        columns = ("layers", "<tracing", "<jobs", *(_SHORT.get(name, name) for name in names))
        rows = [_row(point, names) for point in points if set(names) <= set(point.get("seconds", ()))]
        console().print(make_table(title, None, columns, rows))
    for point in points:
        if "error" in point:
            click.echo(f"{point['layers']} layers, {point['tracing']}: {point['error']}")


def _row(point: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    jobs = "" if point["jobs"] is None else f"{point['jobs']} {point['start'] if point['jobs'] else ''}".strip()
    return [str(point["layers"]), point["tracing"], jobs, *(f"{point['seconds'][name]:.2f}" for name in names)]


if __name__ == "__main__":
    main()
