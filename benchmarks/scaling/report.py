"""The scaling benchmark's outcome as tables: what was compiled and what it computed, seconds, and how they grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.common.report import Column, cells_of, console, table_by_layers
from benchmarks.scaling.compile_counts import explained, plans
from benchmarks.scaling.run import Outcome, Point
from benchmarks.scaling.summary import summary

_WITHOUT = "no cache"


def print_outcome(outcome: Outcome, title: str) -> None:
    """Prints tables of all points, then what went wrong or was left out."""
    out, points = console(), outcome.points
    out.print(_table(points, title, _counts(), _COUNTS_CAPTION))
    for line in explained(points):
        out.print(escape(line), soft_wrap=True)
    out.print(_table(points, "seconds", _seconds(points), _SECONDS_CAPTION))
    if any("steady" in point for point in points):
        out.print(_table(points, "later steps", _STEADY, _STEADY_CAPTION))
    _print_summary(out, summary(points))
    for point in points:
        where = f"{point['layers']} layers, {point['mode']}"
        if "error" in point:
            out.print(escape(f"error: {where}: {point['error']}"), soft_wrap=True)
        for reason, count in point.get("unkept", {}).items():
            out.print(escape(f"note: {where}: {count} not kept: {reason}"), soft_wrap=True)
    for note in outcome.notes:
        out.print(escape(f"note: {note}"), soft_wrap=True)


_COUNTS_CAPTION = (
    "bitwise: whether the output and all gradients are those of uncached, bit for bit; sums: what becomes of the sums "
    "of a residual stream"
)
_SECONDS_CAPTION = (
    "ours: canonical's share of the first step; gain: first step against uncached; start-up is no part of the first "
    "step; warm: a second process with the store that cached left"
)
_STEADY_CAPTION = "medians of later steps; peak: at most allocated in one; compiles: in them, beyond those of the first"


def _table(points: Sequence[Point], title: str, columns: Sequence[Column[Point]], caption: str) -> Table:
    """A row for each point, those without results included: these say in each cell why there is none."""
    names, found = cells_of(columns, [point for point in points if "seconds" in point])
    measured = iter(found)
    rows = (
        (point["layers"], [point["mode"], *(next(measured) if "seconds" in point else _no_result(point, len(names)))])
        for point in points
    )
    return table_by_layers(title, caption, ("mode", *names), rows)


def _no_result(point: Point, cells: int) -> list[str]:
    return [point.get("not_run", "failed")] * cells


def _counts() -> list[Column[Point]]:
    return [
        *(Column(name, _count(name), _WITHOUT) for name in ("regions", "templates", "compiles", "loads")),
        Column("sums", plans),
        Column("bitwise", _bitwise, "not compared"),
    ]


def _count(name: str) -> Callable[[Point], str | None]:
    return lambda point: None if point.get(name) is None else str(point[name])


def _bitwise(point: Point) -> str | None:
    match point.get("bitwise"):
        case None:
            return None
        case {"to": to} if to == point["mode"]:
            return "reference"
        case {"to": to, "equal": True}:
            return "yes" if to == "uncached" else f"yes, to {to}"
        case found:
            return "NO" if found["must_be"] else "rounds elsewhere"


def _seconds(points: Sequence[Point]) -> list[Column[Point]]:
    uncached = {
        point["layers"]: point["seconds"]["first_step"]
        for point in points
        if point["mode"] == "uncached" and "seconds" in point
    }

    def gain(point: Point) -> str | None:
        """How many times faster than without any cache."""
        other = uncached.get(point["layers"])
        return None if other is None else f"{other / point['seconds']['first_step']:.2f} x"

    return [
        Column("trace", _phase("trace")),
        Column("canonical", _phase("canonicalize")),
        Column("compile", _phase("compile")),
        Column("load", lambda point: _phase("load")(point) if point["seconds"].get("load") else None, "0.000"),
        Column("run", _phase("run")),
        Column("first step", _phase("first_step")),
        Column("ours", lambda point: f"{100 * point['share']:.1f}%" if "share" in point else None),
        Column("gain", gain, "no uncached"),
        Column("start-up", _phase("startup", 1)),
    ]


def _phase(name: str, digits: int = 3) -> Callable[[Point], str | None]:
    return lambda point: f"{point['seconds'][name]:.{digits}f}" if name in point["seconds"] else None


def _later(name: str, scale: float, digits: int) -> Callable[[Point], str | None]:
    def cell(point: Point) -> str | None:
        value = point.get("steady", {}).get(name)
        return None if value is None else f"{scale * value:.{digits}f}"

    return cell


_STEADY: list[Column[Point]] = [
    Column("forward, ms", _later("forward", 1e3, 3), "not timed"),
    Column("backward, ms", _later("backward", 1e3, 3), "not timed"),
    Column("peak, MiB", _later("peak", 2**-20, 1), "no GPU"),
    Column("compiles", _later("compiles", 1, 0), "not timed"),
]
_RATIOS = {name.replace("_", " "): name for name in ("first_step", "compile", "forward", "backward", "peak")}


def _print_summary(out: Console, found: Mapping[str, Any]) -> None:
    """How first steps grow, and modes by each other."""
    for mode, growth in found["growth"].items():
        before, last = growth["deepest"]
        exponent = "" if growth["slope"] is None else f"; as layers to the power of {growth['slope']:.2f} from 8 on"
        out.print(f"{mode}: first step at {last} layers is {growth['ratio']:.2f} times that at {before}{exponent}")
    rows = [(record["layers"], pair, record) for pair, of in found["ratios"].items() for record in of]
    if rows:
        rows.sort(key=lambda row: row[0])
        names, cells = cells_of(_ratio_columns(), [record for _, _, record in rows])
        table = ((layers, [pair, *found_cells]) for (layers, pair, _), found_cells in zip(rows, cells, strict=True))
        out.print(table_by_layers("one mode by another", "ratios", ("modes", *names), table))


def _ratio_columns() -> list[Column[Mapping[str, Any]]]:
    def ratio(name: str) -> Callable[[Mapping[str, Any]], str | None]:
        return lambda record: None if record[name] is None else f"{record[name]:.2f}"

    return [Column(title, ratio(name), "not timed") for title, name in _RATIOS.items()]
