"""The outcome of the benchmark of memory as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from benchmarks.common import report
from benchmarks.common.choices import in_words
from benchmarks.memory.run import Outcome, Point
from benchmarks.memory.spec import REFERENCE

_CAPTION = (
    "saved: for backward; peak: at most allocated in a step, weights and gradients included, in GiB; less: than the "
    "reference; by: the reference's step; bitwise: output and gradients that are the reference's; compile: seconds"
)
_COLUMNS: dict[str, Callable[[Point], str]] = {
    "chosen": lambda point: in_words(point["choices"]),
    "saved": lambda point: gibibytes(point["saved"]),
    "less": lambda point: _less(point, "saved"),
    "peak": lambda point: gibibytes(point["steady"]["peak"]),
    "less ": lambda point: _less(point, "peak"),
    "step, ms": lambda point: f"{1e3 * point['steady']['step']:.1f}",
    "by": lambda point: _by(point, "step"),
    "compiles": lambda point: str(point["compiles"] + point["compiles_later"]),
    "compile": lambda point: f"{point['compile_seconds']:.1f}",
    "first step": lambda point: f"{point['first_step']:.1f}",
    "bitwise": lambda point: bitwise(point),
}


def print_outcome(outcome: Outcome, title: str) -> None:
    """Prints a table of all points, what was chosen in each, and what went wrong."""
    out = report.console()
    out.print(_table(outcome.points, title))
    for choice, names in _choices(outcome.points).items():
        out.print(escape(f"{choice} ({', '.join(names)})"), soft_wrap=True)
    for point in outcome.points:
        where = f"{point['model']}, {point['name']}"
        if "error" in point:
            out.print(escape(f"error: {where}: {point['error']}"), soft_wrap=True)
        elif point["differing"]:
            out.print(escape(f"differs: {where}: {', '.join(point['differing'])}"), soft_wrap=True)
        if point.get("not_finite"):
            out.print(escape(f"not finite: {where}: {', '.join(point['not_finite'])}"), soft_wrap=True)


def gibibytes(size: int | None) -> str:
    """With two digits behind the point; GiB."""
    return "-" if size is None else f"{size / 2**30:.2f}"


def bitwise(point: Mapping[str, Any]) -> str:
    """How many tensors have the reference's bits."""
    return "-" if point["bitwise"] is None else f"{point['bitwise']} of {point['tensors']}"


def _table(points: list[Point], title: str) -> Table:
    table = Table(title=title, caption=_CAPTION, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, name in enumerate(("model", "plan", *_COLUMNS)):
        table.add_column(name, justify="left" if number < 3 else "right", no_wrap=True)
    before = None
    for point in points:
        if before not in (None, point["model"]):
            table.add_section()
        before = point["model"]
        cells = ["failed"] if "error" in point else [cell(point) for cell in _COLUMNS.values()]
        table.add_row(point["model"], point["name"], *cells)
    return table


def _less(point: Point, name: str) -> str:
    return "" if point["plan"] == REFERENCE or not point["against"] else gibibytes(point["against"][name])


def _by(point: Point, name: str) -> str:
    return "" if point["plan"] == REFERENCE or not point["against"] else f"{point['against'][name]:.3f}"


def _choices(points: list[Point]) -> dict[str, list[str]]:
    """What each plan was reckoned to cost, for each stream, with the points in which it was reckoned so."""
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
