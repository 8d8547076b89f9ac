"""The outcome of the benchmark of memory as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.common.choices import name_plans
from benchmarks.common.report import console, make_table, print_line
from benchmarks.common.results import Outcome, Point
from benchmarks.memory.spec import REFERENCE

_CAPTION = (
    "saved: for backward; peak: at most allocated in a step, weights and gradients included, in GiB; less: than the "
    "reference; by: the reference's step; bitwise: output and gradients that are the reference's; compile: seconds"
)
_COLUMNS: dict[str, Callable[[Point], str]] = {
    "<chosen": lambda point: name_plans(point["choices"]),
    "saved": lambda point: format_gibibytes(point["saved"]),
    "less": lambda point: _less(point, "saved"),
    "peak": lambda point: format_gibibytes(point["steady"]["peak"]),
    "less ": lambda point: _less(point, "peak"),
    "step, ms": lambda point: f"{1e3 * point['steady']['step']:.1f}",
    "by": lambda point: _by(point, "step"),
    "compiles": lambda point: str(point["compiles"] + point["compiles_later"]),
    "compile": lambda point: f"{point['compile_seconds']:.1f}",
    "first step": lambda point: f"{point['first_step']:.1f}",
    "bitwise": lambda point: format_bitwise(point),
}


def print_outcome(outcome: Outcome, title: str) -> None:
    """Prints a table of all points, what was chosen in each, and what went wrong."""
    out = console()
    columns = ("<model", "<plan", *_COLUMNS)
    rows = map(_row, outcome.points)
    out.print(make_table(title, _CAPTION, columns, rows, wrap=False, sections=True))
    for choice, names in _choices(outcome.points).items():
        print_line(out, f"{choice} ({', '.join(names)})")
    for point in outcome.points:
        where = f"{point['model']}, {point['name']}"
        if "error" in point:
            print_line(out, f"error: {where}: {point['error']}")
        elif point["differing"]:
            print_line(out, f"differs: {where}: {', '.join(point['differing'])}")
        if point.get("not_finite"):
            print_line(out, f"not finite: {where}: {', '.join(point['not_finite'])}")


def format_gibibytes(size: int | None) -> str:
    """Returns GiB with two digits behind the point."""
    return "-" if size is None else f"{size / 2**30:.2f}"


def format_bitwise(point: Mapping[str, Any]) -> str:
    """Says how many tensors have the reference's bits."""
    return "-" if point["bitwise"] is None else f"{point['bitwise']} of {point['tensors']}"


def _row(point: Point) -> list[str]:
    cells = ["failed"] if "error" in point else [cell(point) for cell in _COLUMNS.values()]
    return [point["model"], point["name"], *cells]


def _less(point: Point, name: str) -> str:
    return "" if point["plan"] == REFERENCE or not point["against"] else format_gibibytes(point["against"][name])


def _by(point: Point, name: str) -> str:
    return "" if point["plan"] == REFERENCE or not point["against"] else f"{point['against'][name]:.3f}"


def _choices(points: list[Point]) -> dict[str, list[str]]:
    """Says what each plan was expected to cost for each stream, with the points that expected it."""
    found: dict[str, list[str]] = {}
    for point in points:
        for choice in point.get("choices", ()):
            costs = "; ".join(f"{plan} {_cost(cost)}" for plan, cost in choice["costs"].items())
            line = f"{point['model']}, {choice['sums']} sums from {choice['stream']}: {costs}"
            found.setdefault(line, []).append(f"{point['name']}: {choice['plan']}")
    return found


def _cost(cost: Mapping[str, Any]) -> str:
    moved, alive = (cost[name] / 2**20 for name in ("moved", "alive"))
    return f"{moved:.1f} MiB moved, {alive:.1f} alive, {cost['kernels']} kernels"
