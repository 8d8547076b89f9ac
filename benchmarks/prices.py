"""Seconds of first and later steps without one accelerator, as ratios to those with all of them, in one run.

For each accelerator the processes of ``benchmarks/budget`` run in turn without it and with all: a process with empty
caches, which takes steps of three lengths, and a second process with the caches that it left. A ratio above 1 is the
gain of the accelerator. The table also has its lines of code, and its number of Thunder's names beside the core's.

The schedule of collectives needs several ranks, and CUDA graphs have a separate figure: neither is measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import click

from benchmarks.budget.__main__ import make_spec
from benchmarks.budget.run import Pair, Series, collect_seconds
from benchmarks.budget.sides import copy_current
from benchmarks.budget.spec import FIGURES
from benchmarks.code_size import count_lines
from benchmarks.common.options import count_option, layers_option, limit_option, repeat_option
from benchmarks.common.processes import ROOT, ProcessFailed, print_progress
from benchmarks.common.runner import Point, Run, benchmark, pick

WITH, WITHOUT = "with", "without"
FOLDERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "programs": ("accelerators/programs",),
        "sizes": ("accelerators/sizes",),
        "tracing": ("thunder_adapter/shortcuts", "accelerators/layers"),
        "lean steps": ("accelerators/steps",),
        "residual": ("accelerators/residual",),
        "precompile": ("accelerators/precompile",),
        "graphs": ("accelerators/graphs",),
        "schedule": ("accelerators/schedule",),
        "splitting": ("accelerators/splitting",),
    }
)
"""The accelerators, each with the folders of the package that contain its code."""
_ELSEWHERE = ("graphs", "schedule", "splitting")


@benchmark(__doc__, needs_litgpt=True)
@layers_option(4)
@count_option("--steps", 50, "Later steps that count.")
@click.option("--only", multiple=True, type=click.Choice(tuple(FOLDERS)), help="Measures these alone.")
@repeat_option("Pairs of processes for each accelerator; the medians count.", default=3)
@limit_option
def main(run: Run, layers: int, steps: int, only: Sequence[str], repeat: int) -> None:
    """Runs the benchmark."""
    run.points = [describe_accelerator(name) for name in FOLDERS]
    with TemporaryDirectory(prefix="fusioncache-prices-") as directory:
        side = replace(copy_current(Path(directory), run.machine.environment["commit"]), name=WITH)
        for point in run.points:
            name = point["accelerator"]
            if name in _ELSEWHERE or (only and name not in only):
                continue
            others = tuple(each for each in FOLDERS if each != name)
            sides = (side, replace(side, name=WITHOUT, accelerators=others))
            point |= measure(Series(sides, make_spec(run.machine, layers, steps, processes=1), run), repeat)
            run.save()
    columns = {"<accelerator": pick("accelerator"), "lines": pick("lines"), "names of Thunder": pick("names")}
    ratios = {name.replace("_", " "): _write_ratio(name) for name in FIGURES}
    run.finish("seconds without / with", {**columns, **ratios}, "medians of pairs")


def describe_accelerator(accelerator: str) -> Point:
    """Returns an accelerator's lines of code, and the number of Thunder's names that it needs but the core does not."""
    from fusioncache.thunder_adapter.capabilities import list_names

    package = ROOT / "fusioncache"
    files = [path for folder in FOLDERS[accelerator] for path in sorted((package / folder).rglob("*.py"))]
    lines = sum(count_lines(path.read_text()) for path in files)
    core = list_names()["core"]
    names = list_names().get(accelerator, {})
    own = {f"{module}.{name}" for module, found in names.items() for name in found if name not in core.get(module, ())}
    return {"accelerator": accelerator, "lines": lines, "files": len(files), "names": len(own)}


def measure(series: Series, repeat: int) -> dict[str, Any]:
    """Returns for each figure the ratios of all pairs: seconds without an accelerator to seconds with all of them."""
    pairs: list[Pair] = []
    try:
        for pair in series.run(repeat):
            pairs.append(pair)
    except ProcessFailed as failure:
        print_progress(f"{failure.message}\n{failure.log}\n")
        return {"error": failure.message}
    seconds = {name: collect_seconds(pairs, (WITHOUT, WITH), name) for name in FIGURES}
    return {"ratios": {name: [ours / theirs for ours, theirs in each] for name, each in seconds.items() if each}}


def _write_ratio(name: str) -> Callable[[Point], str | None]:
    def cell(point: Point) -> str | None:
        ratios = point.get("ratios", {}).get(name)
        return f"{median(ratios):.2f}" if ratios else None

    return cell


if __name__ == "__main__":
    main()
