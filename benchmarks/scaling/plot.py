"""Draws the scaling benchmark's JSON: ``python -m benchmarks.scaling.plot RESULT.json PLOT.svg``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.drawing import SUFFIXES, draw

_COLORS = {
    "cached": "#1b7837",
    "warm": "#7fbf7b",
    "lru": "#2166ac",
    "uncached": "#b2182b",
    "own": "#762a83",
    "baseline": "#878787",
}


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Writes a log-log plot of the seconds to the first step, and of those compiling, over the number of layers.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed.
    """
    with draw(path, (7, 4.5)) as axes:
        points = [point for point in result["points"] if "seconds" in point]
        for mode in dict.fromkeys(point["mode"] for point in points):
            of_mode = [point for point in points if point["mode"] == mode]
            layers = [point["layers"] for point in of_mode]
            for phase, style, label in (("first_step", "o-", "first step"), ("compile", "s:", "compiling")):
                seconds = [point["seconds"][phase] for point in of_mode]
                axes.plot(layers, seconds, style, color=_COLORS[mode], markersize=4, label=f"{mode}: {label}")
        _label(axes, result, points)


def _label(axes: Any, result: Mapping[str, Any], points: list[Mapping[str, Any]]) -> None:
    from matplotlib.ticker import FuncFormatter, LogFormatter, NullFormatter

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({point["layers"] for point in points})
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(LogFormatter())  # labels where there would be too few
    axes.set_xlabel("layers")
    axes.set_ylabel("seconds")
    axes.set_title(title(result), fontsize=10)
    axes.grid(True, which="major", alpha=0.3)
    if points:
        axes.legend(fontsize=8)


def title(result: Mapping[str, Any]) -> str:
    """Returns what was measured, and on what."""
    options, environment = result["environment"]["options"], result["environment"]
    step = "forward and backward" if options["grad"] else "forward"
    recompute = "with" if options["recompute"] else "without"
    machine = environment["gpu"] or f"{environment['cpus']} CPUs"
    return f"{options['model']} {recompute} recompute, {step}, {options['backend']}, {machine}"


if __name__ == "__main__":
    if len(sys.argv) != 3 or Path(sys.argv[2]).suffix not in SUFFIXES:
        sys.exit("usage: python -m benchmarks.scaling.plot RESULT.json PLOT.svg|PLOT.png")
    plot(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
