"""Draws the JSON of ``benchmarks/lengths``: the seconds of each step, in order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.drawing import draw


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Writes a plot of the seconds of each step, on a logarithmic axis, a line for each way.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed.
    """
    with draw(path, (8, 4.5)) as axes:
        for point in result["points"]:
            if "steps" in point:
                seconds = [step["seconds"] for step in point["steps"]]
                axes.plot(range(1, len(seconds) + 1), seconds, ".-", markersize=4, linewidth=0.8, label=point["way"])
        options, environment = result["environment"]["options"], result["environment"]
        machine = environment["gpu"] or f"{environment['cpus']} CPUs"
        axes.set_yscale("log")
        axes.set_xlabel(
            f"step; lengths {', '.join(map(str, options['lengths']))}, then drawn from {options['between']}"
        )
        axes.set_ylabel("seconds")
        axes.set_title(
            f"narrow Llama, {options['layers']} layers, forward and backward, {options['backend']}, {machine}"
        )
        axes.grid(True, which="major", alpha=0.3)
        axes.legend(fontsize=8)
