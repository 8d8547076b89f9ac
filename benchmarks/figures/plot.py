"""Plots of results as files. The same figure always gives the same file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SUFFIXES = (".svg", ".png")
"""Suffixes of the files of figures."""

_COLORS = ("#1b7837", "#7fbf7b", "#2166ac", "#b2182b", "#762a83", "#878787")


def plot_starts(result: Mapping[str, Any], path: Path) -> None:
    """Writes a log-log plot of the seconds of the first step and of compiling, over the number of layers.

    Args:
        result: of ``benchmarks/starts``.
        path: of the file.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed.
    """
    import matplotlib
    from matplotlib import pyplot

    lines: dict[str, list[tuple[int, Mapping[str, float]]]] = {}
    for point in result["points"]:
        if "seconds" in point:
            name = f"{point['way']}{', warm' * (point['process'] == 'warm')}"
            lines.setdefault(name, []).append((point["layers"], point["seconds"]))
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fusioncache"  # otherwise each file has other identifiers
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for number, (name, points) in enumerate(lines.items()):
        color = _COLORS[number % len(_COLORS)]
        for phase, style, label in (("total", "o-", "first step"), ("compile", "s:", "compiling")):
            layers = [depth for depth, seconds in points if phase in seconds]
            values = [seconds[phase] for _, seconds in points if phase in seconds]
            axes.plot(layers, values, style, color=color, markersize=4, label=f"{name}: {label}")
    _label(axes, result, sorted({depth for points in lines.values() for depth, _ in points}))
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None})
    pyplot.close(figure)


def _label(axes: Any, result: Mapping[str, Any], ticks: list[int]) -> None:
    from matplotlib.ticker import FuncFormatter, LogFormatter, NullFormatter

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(LogFormatter())  # more labels if there are too few
    axes.set_xlabel("layers")
    axes.set_ylabel("seconds")
    axes.set_title(_describe(result), fontsize=10)
    axes.grid(True, which="major", alpha=0.3)
    if ticks:
        axes.legend(fontsize=8)


def _describe(result: Mapping[str, Any]) -> str:
    """Returns a title with the models, the options and the machine."""
    options, environment = result["environment"]["options"], result["environment"]
    step = "forward and backward" if options["grad"] else "forward"
    recompute = "with" if options["recompute"] else "without"
    machine = environment["gpu"] or f"{environment['cpus']} CPUs"
    return f"{', '.join(options['models'])} {recompute} recompute, {step}, {options['backend']}, {machine}"
