"""Measures first and later steps of the current checkout, as ratios to those of a base, in one run.

Run it before and after a refactoring. A narrow Llama takes training steps without an optimizer. On each side, a process
with empty caches takes steps of three lengths. Then second processes take steps with the caches that it left: a first
step, later ones, and on a GPU also steps replayed from CUDA graphs. The sides run in turn, and each pair reverses their
order. Each second process runs alone, and forms a pair with the next one of the other side. The first step of a process
includes the import of fusioncache, but not the imports of torch, Thunder and the model. Full garbage collections may
fall into any step, so they are a separate figure: their sum over a cold process. Seconds are wall time on a GPU. On a
CPU they are CPU time, of a process and of all processes that it waited for.

The ratio of a pair is current over base. A figure is slower if the median ratio of its pairs is above 1 + tolerance and
the range of their ratios is above 1. The range is from the first to the third quartile; of three pairs it is from the
least to the largest. A figure is unclear, and needs more pairs, if its median ratio is above 1 + tolerance and its
range includes 1, or if there are fewer than three pairs. The exit status is 1 if a figure is slower or a process fails.

Without a git history, --base names a folder with the package of the base, made elsewhere by
``git archive ef4487f fusioncache | tar x -C FOLDER``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.budget.run import Pair, Series, collect_seconds
from benchmarks.budget.sides import BASE, CURRENT, Side, copy_base, copy_current
from benchmarks.budget.spec import BASE_COMMIT, BATCH, FIGURES, LENGTHS, SECOND, ProcessSpec
from benchmarks.budget.verdict import NOT_AVAILABLE, SLOWER, Comparison, compare
from benchmarks.common.environment import Machine
from benchmarks.common.models import NARROW
from benchmarks.common.options import (
    backend_option,
    command,
    count_option,
    json_option,
    layers_option,
    limit_option,
    repeat_option,
    require_litgpt,
)
from benchmarks.common.processes import ProcessFailed
from benchmarks.common.runner import Point, Run, begin, print_line, print_table

_OF_PROCESS = ("folder", "process", "accelerators", "variables")
_ALIKE = 0.01
"""The difference between the losses of all processes, relative to the least, above which there is a note."""


@command(__doc__)
@backend_option()
@layers_option(4)
@count_option("--steps", 200, "Later steps that count.")
@count_option("--processes", 3, "Second processes of each side, for each pair of cold ones.")
@click.option("--lengths", type=click.IntRange(1, 3), default=3, help="How many of them a cold process has.")
@click.option("--tolerance", type=click.FloatRange(min=0.0), default=0.03, help="By how much ratios may be above 1.")
@repeat_option("Pairs of cold processes; the medians of all pairs count.", default=5)
@limit_option
@click.option("--commit", default=BASE_COMMIT, help="The base, taken from git.")
@click.option(
    "--base", type=click.Path(exists=True, file_okay=False, path_type=Path), help="The base, where it is not from git."
)
@json_option
def main(
    backend: str,
    layers: int,
    steps: int,
    processes: int,
    lengths: int,
    tolerance: float,
    repeat: int,
    limit: float | None,
    commit: str,
    base: Path | None,
    json_file: Path | None,
) -> None:
    """Runs the benchmark."""
    require_litgpt("Llama")
    with TemporaryDirectory(prefix="fusioncache-budget-sides-") as directory:
        other = copy_base(Path(directory), base, commit)
        run = begin(json_file, {}, backend, limit=limit)
        sides = copy_current(Path(directory), run.machine.environment["commit"]), other
        spec = make_spec(run.machine, layers, steps, processes)
        spec = replace(spec, lengths=spec.lengths[:lengths])
        run.options = _list_options(spec) | {"repeat": repeat, "tolerance": tolerance}
        run.more = {"sides": {side.name: {"commit": side.commit, "digest": side.digest} for side in sides}}
        _measure(Series(sides, spec, run), repeat, tolerance)
    _print(run, sides)
    sys.exit(1 if any("error" in point or point["verdict"] == SLOWER for point in run.points) else 0)


def _measure(series: Series, repeat: int, tolerance: float) -> None:
    """Runs all pairs. After each pair the run contains the pairs, and a point for each figure."""
    run, pairs = series.benchmark, list[Pair]()
    run.notes, run.more["pairs"] = _note_alike(series.sides), pairs
    try:
        series.rehearse()
        for pair in series.run(repeat):
            pairs.append(pair)
            run.points = [_describe_point(figure, pairs, tolerance) for figure in FIGURES]
            run.save()
    except ProcessFailed as failure:
        run.points.append({"error": failure.message, "log": failure.log})
    run.notes += [*_note_losses(pairs), *_note_programs(pairs), f"{len(pairs)} of {repeat} pairs were measured"]
    run.save()


def make_spec(machine: Machine, layers: int, steps: int, processes: int) -> ProcessSpec:
    """Returns the specification that all processes share."""
    return ProcessSpec(
        folder="",
        process="",
        layers=layers,
        widths=NARROW[machine.device],
        lengths=LENGTHS,
        batch=BATCH,
        steps=steps,
        processes=processes,
        backend=machine.backend,
        device=machine.device,
        dtype=machine.choose_dtype("llama"),
    )


def _list_options(spec: ProcessSpec) -> dict[str, Any]:
    options = {name: value for name, value in asdict(spec).items() if name not in _OF_PROCESS}
    return options | {"clock": "wall" if spec.device == "cuda" else "cpu"}


def _describe_point(figure: str, pairs: Sequence[Pair], tolerance: float) -> Point:
    seconds = collect_seconds(pairs, (CURRENT, BASE), figure)
    if not seconds:
        return {"figure": figure, "verdict": NOT_AVAILABLE}
    found: Comparison = compare(seconds, tolerance)
    return {
        "figure": figure,
        "seconds": {CURRENT: found.current, BASE: found.base},
        "ratio": found.ratio,
        "range": [found.low, found.high],
        "verdict": found.verdict,
        "ratios": list(found.ratios),
    }


def _note_alike(sides: Sequence[Side]) -> list[str]:
    ours, theirs = sides
    return ["both sides have the same code: what differs is noise"] if ours.digest == theirs.digest else []


def _note_losses(pairs: Sequence[Pair]) -> list[str]:
    """Returns a note if the losses of processes differ."""
    losses = [each["loss"] for pair in pairs for said in pair.values() for each in said.values()]
    if not losses or max(losses) - min(losses) <= _ALIKE * min(losses):
        return []
    return [f"losses differ: they are between {min(losses):.4f} and {max(losses):.4f}"]


def _note_programs(pairs: Sequence[Pair]) -> list[str]:
    """Returns a note for each side whose second processes loaded no program, for example without a store."""
    found = {side: sum(pair[side][SECOND]["counts"]["programs_loaded"] for pair in pairs) for side in (CURRENT, BASE)}
    return [f"{side}: no second process loaded a program" for side, loaded in found.items() if pairs and not loaded]


def _print(run: Run, sides: Sequence[Side]) -> None:
    columns = ("<figure", "current, s", "base, s", "ratio", "range", "<verdict")
    rows = [_write_row(point) for point in run.points if "error" not in point]
    names = " beside ".join(f"{side.name} {(side.commit or 'unknown commit')[:18]}" for side in sides)
    print_table(names, columns, rows, "medians; a ratio is current / base")
    for text in [*run.notes, *(f"{point['error']}\n{point['log']}" for point in run.points if "error" in point)]:
        print_line(text)


def _write_row(point: Point) -> list[str]:
    if point["verdict"] == NOT_AVAILABLE:
        return [FIGURES[point["figure"]], "", "", "", "", NOT_AVAILABLE]
    seconds = (f"{point['seconds'][side]:.4f}" for side in (CURRENT, BASE))
    low, high = point["range"]
    return [FIGURES[point["figure"]], *seconds, f"{point['ratio']:.3f}", f"{low:.3f} to {high:.3f}", point["verdict"]]


if __name__ == "__main__":
    main()
