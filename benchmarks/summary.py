"""Measures the waits of users, in one table for a model: starts, new lengths and later steps, beside torch.compile.

A series is three processes that share caches. In the first the caches are empty, and the model takes a training step at
each of ``--lengths``, then at ``--random`` lengths drawn from the range ``--between``. The second takes the same steps.
The third takes as many steps at lengths that no earlier process has used. Each process ends with later steps at the
first lengths. Every way has ``--repeat`` series, in turn. A cell is the median of the series, with minimum and maximum;
of later steps it is that of all processes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.common.models import count_layers
from benchmarks.common.options import repeat_option
from benchmarks.common.processes import print_progress
from benchmarks.common.runner import Point, Run, benchmark, pick, print_table, take_turns
from benchmarks.common.ways import WAYS
from benchmarks.lengths import LengthsSpec, sequence_options

_SEED = 29
PROCESSES = ("cold", "known lengths", "other lengths")


def list_lengths(named: Sequence[int], count: int, between: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    """Returns the lengths of the steps of each process. No other process has a length of the last one.

    Raises:
        click.BadParameter: if the range has too few lengths.
    """
    free = sorted({*range(between[0], between[1] + 1)} - {*named})
    others = len(named)
    if len(free) < 2 * count + others:
        raise click.BadParameter(f"{between[0]} {between[1]} has fewer than {2 * count + others} further lengths")
    drawn = random.Random(_SEED).sample(free, 2 * count + others)
    known = (*named, *drawn[:count])
    return dict(zip(PROCESSES, (known, known, tuple(drawn[count:])), strict=True))


def _first(point: Point) -> float:
    return _seconds(point)[0]


def _seconds(point: Point) -> list[float]:
    return [step["seconds"] for step in point["steps"]]


def _count(name: str) -> Callable[[Point], float]:
    return lambda point: sum(step[name] for step in point["steps"])


def _worst_error(point: Point) -> float:
    error: float = max(each["error"] for each in point["later"])
    return error


_FIGURES: tuple[tuple[str, tuple[str, ...], Callable[[Point], float]], ...] = (
    ("first step, cold", ("cold",), _first),
    ("second length", ("cold",), lambda point: _seconds(point)[1]),
    ("third length", ("cold",), lambda point: _seconds(point)[2]),
    ("lengths after it, median", ("cold",), lambda point: median(_seconds(point)[3:])),
    ("lengths after it, slowest", ("cold",), lambda point: max(_seconds(point)[3:])),
    ("all steps of the cold process", ("cold",), lambda point: sum(_seconds(point))),
    ("first step of a second process", ("known lengths",), _first),
    ("its further known lengths, median", ("known lengths",), lambda point: median(_seconds(point)[1:])),
    ("its further known lengths, slowest", ("known lengths",), lambda point: max(_seconds(point)[1:])),
    ("its compiles", ("known lengths",), _count("compiles")),
    ("its traces", ("known lengths",), _count("traces")),
    ("first step of a process at unknown lengths", ("other lengths",), _first),
    ("its further unknown lengths, median", ("other lengths",), lambda point: median(_seconds(point)[1:])),
    ("its further unknown lengths, slowest", ("other lengths",), lambda point: max(_seconds(point)[1:])),
    ("later step, ms", PROCESSES, lambda point: mean(each["step_ms"] for each in point["later"])),
    ("slowest later step, ms", PROCESSES, lambda point: max(each["slowest_ms"] for each in point["later"])),
    ("worst error, cold", ("cold",), _worst_error),
    ("worst error of the second process", ("known lengths",), _worst_error),
    ("worst error at unknown lengths", ("other lengths",), _worst_error),
)
"""The rows of the table: title, processes, and the function from a point of such a process to the value."""


def list_rows(points: Sequence[Point]) -> tuple[list[str], list[list[str]]]:
    """Returns the names of the columns and the rows of the table: a column for each way, and ratios to the last way.

    Args:
        points: of processes, each with ``way``, ``process`` and its steps.
    """
    good = [point for point in points if "error" not in point]
    ways = list(dict.fromkeys(point["way"] for point in good))
    rows = []
    for title, processes, figure in _FIGURES:
        measured = [point for point in good if point["process"] in processes]
        found = [[figure(point) for point in measured if point["way"] == way] for way in ways]
        ratios = [_write_ratio(each, found[-1]) for each in found[:-1]]
        rows.append([title, *map(_write, found), *ratios])
    return ["<seconds", *ways, *(f"{way} to {ways[-1]}" for way in ways[:-1])], rows


def _write(values: Sequence[float]) -> str:
    if not values:
        return ""
    middle, *ends = (f"{value:.3g}" for value in (median(values), min(values), max(values)))
    return middle if len({middle, *ends}) == 1 else f"{middle} ({ends[0]} to {ends[1]})"


def _write_ratio(own: Sequence[float], other: Sequence[float]) -> str:
    return f"{median(own) / median(other):.2f}" if own and other and median(other) else ""


def run_series(run: Run, way: str, number: int, lengths: Mapping[str, tuple[int, ...]], common: Point) -> None:
    """Runs the processes of a series and stores their points. After a process that fails, the others do not run."""
    with TemporaryDirectory(prefix="fusioncache-series-", ignore_cleanup_errors=True) as caches:
        for process in PROCESSES:
            spec = LengthsSpec(way=way, lengths=lengths[process], **common)
            identity = {"way": way, "series": number, "process": process}
            where = {"caches": Path(caches), "environment": WAYS[way].environment}
            point = run.measure(identity, "benchmarks.lengths:measure", asdict(spec), **where)
            run.add(point)
            if "error" in point:
                return
            later = sum(_seconds(point)[1:])
            print_progress(f"{way}, series {number}, {process}: {_first(point):.2f} s, then {later:.1f} s\n")


@benchmark(__doc__, needs_litgpt=True)
@sequence_options(layers=8, lengths=(64, 96, 65, 200, 128), random=20, later=50)
@repeat_option("Series of each way.", 3)
def main(
    run: Run,
    lengths: Sequence[int],
    random: int,
    between: tuple[int, int],
    ways: Sequence[str],
    repeat: int,
    **options: Any,
) -> None:
    """Runs the benchmark."""
    if len(lengths) < 4:
        raise click.BadParameter("give four lengths or more, as in 64,96,65,200", param_hint="--lengths")
    common = {**run.machine.place(), **options, "again": len(lengths)}
    listed = list_lengths(lengths, random, between)
    for turn, way in enumerate(take_turns(ways, repeat)):
        run_series(run, way, turn // len(ways) + 1, listed, common)
    print_table(f"{options['model']}, {count_layers(options['layers'])}", *list_rows(run.points))
    columns = {f"<{name}": pick(name) for name in ("way", "series", "process")}
    run.finish("all processes", {**columns, "all steps, s": lambda point: f"{sum(_seconds(point)):.2f}"})


if __name__ == "__main__":
    main()
