"""The table of docs/prices.md: what each accelerator costs and saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.budget.spec import FIGURES
from benchmarks.figures.markdown import make_table


def tabulate_prices(*results: Mapping[str, Any]) -> str:
    """Returns a row for each accelerator, with its ratios from the result that measured it."""
    points: dict[str, dict[str, Any]] = {}
    for result in results:
        for point in result["points"]:
            if "ratios" in point or point["accelerator"] not in points:
                points[point["accelerator"]] = point
    columns = ("<accelerator", "lines", "names of Thunder", *FIGURES.values())
    return make_table(columns, [_write_row(point) for point in points.values()])


def _write_row(point: Mapping[str, Any]) -> list[str]:
    ratios = point.get("ratios", {})
    cells = (_write_ratios(ratios[name]) if name in ratios else "" for name in FIGURES)
    return [point["accelerator"], f"{point['lines']:,}", str(point["names"]), *cells]


def _write_ratios(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
