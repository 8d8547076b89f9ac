"""The benchmark's outcome as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.scaling import Outcome, Point
from benchmarks.scaling_summary import summary

_WIDTH = 120
_COUNTS = ("regions", "templates", "compiles")
_TIMES = {"trace": "trace", "canonical": "canonicalize", "compile": "compile", "run": "run", "first step": "first_step"}
_COLUMNS = (*_COUNTS, *_TIMES, "ours", "gain", "start-up")
_STEADY = ("forward, ms", "backward, ms", "peak, MiB", "compiles")
_RATIOS = {
    "first step": "first_step",
    "compile": "compile",
    "forward": "forward",
    "backward": "backward",
    "peak": "peak",
}


def console() -> Console:
    """The standard output, wide enough for a table where it is no terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_WIDTH)


def print_outcome(outcome: Outcome, title: str) -> None:
    """Prints a table of all points, then what went wrong or was left out."""
    out = console()
    out.print(_table(outcome.points, title))
    if any("steady" in point for point in outcome.points):
        out.print(_steady_table(outcome.points))
    _print_summary(out, summary(outcome.points))
    for point in outcome.points:
        if "error" in point:
            out.print(escape(f"error: {point['layers']} layers, {point['mode']}: {point['error']}"), soft_wrap=True)
    for note in outcome.notes:
        out.print(escape(f"note: {note}"), soft_wrap=True)


def table_by_layers(title: str, caption: str, columns: Sequence[str], rows: Iterable[tuple[int, list[str]]]) -> Table:
    """A table in sections, one for each number of layers.

    Args:
        title: above it.
        caption: below it.
        columns: after that of the layers; the first one is set flush left.
        rows: the number of layers and the other cells of each.
    """
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, name in enumerate(("layers", *columns)):
        table.add_column(name, justify="left" if number == 1 else "right", no_wrap=True)
    before = None
    for layers, cells in rows:
        if before is not None and before != layers:
            table.add_section()
        before = layers
        table.add_row(str(layers), *cells)
    return table


def _table(points: Sequence[Point], title: str) -> Table:
    caption = (
        "times in seconds; ours: canonical's share of the first step; gain: first step against uncached; "
        "start-up is no part of the first step"
    )
    rows = ((point["layers"], _row(point, points)) for point in points)
    return table_by_layers(title, caption, ("mode", *_COLUMNS), rows)


def _row(point: Point, points: Sequence[Point]) -> list[str]:
    if "seconds" not in point:
        return [point["mode"], "failed"]
    seconds = point["seconds"]
    counts = [_count(point[name]) for name in _COUNTS]
    times = [f"{seconds[phase]:.3f}" for phase in _TIMES.values()]
    ours = f"{100 * point['share']:.1f}%" if "share" in point else "-"
    return [point["mode"], *counts, *times, ours, _gain(point, points), f"{seconds['startup']:.1f}"]


def _steady_table(points: Sequence[Point]) -> Table:
    caption = "medians of later steps; peak: at most allocated in one; compiles: in them, beyond those of the first"
    rows = ((point["layers"], [point["mode"], *_steady(point)]) for point in points if "steady" in point)
    return table_by_layers("later steps", caption, ("mode", *_STEADY), rows)


def _steady(point: Point) -> list[str]:
    steady = point["steady"]
    passes = steady["forward"], steady["backward"]
    times = ["-" if seconds is None else f"{1e3 * seconds:.3f}" for seconds in passes]
    return [*times, f"{steady['peak'] / 2**20:.1f}" if steady["peak"] else "-", _count(steady["compiles"])]


def _print_summary(out: Console, found: Mapping[str, Any]) -> None:
    """How first steps grow, and modes by each other."""
    for mode, growth in found["growth"].items():
        before, last = growth["deepest"]
        exponent = "" if growth["slope"] is None else f"; as layers to the power of {growth['slope']:.2f} from 8 on"
        out.print(f"{mode}: first step at {last} layers is {growth['ratio']:.2f} times that at {before}{exponent}")
    rows = [(record["layers"], [pair, *_ratio_cells(record)]) for pair, of in found["ratios"].items() for record in of]
    if rows:
        rows.sort(key=lambda row: row[0])
        out.print(table_by_layers("one mode by another", "ratios", ("modes", *_RATIOS), rows))


def _ratio_cells(record: Mapping[str, Any]) -> list[str]:
    return ["-" if record[name] is None else f"{record[name]:.2f}" for name in _RATIOS.values()]


def _gain(point: Point, points: Sequence[Point]) -> str:
    """How many times faster than without any cache."""
    for other in points:
        if other["mode"] == "uncached" and other["layers"] == point["layers"] and "seconds" in other:
            return f"{other['seconds']['first_step'] / point['seconds']['first_step']:.2f} x"
    return ""


def _count(value: Any) -> str:
    return "-" if value is None else str(value)
