"""The benchmark's outcome as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.scaling import Outcome, Point

_WIDTH = 120
_COUNTS = ("regions", "templates", "compiles")
_TIMES = {"trace": "trace", "canonical": "canonicalize", "compile": "compile", "run": "run", "first step": "first_step"}
_COLUMNS = (*_COUNTS, *_TIMES, "gain", "start-up")


def console() -> Console:
    """The standard output, wide enough for a table where it is no terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_WIDTH)


def print_outcome(outcome: Outcome, title: str) -> None:
    """Prints a table of all points, then what went wrong or was left out."""
    out = console()
    out.print(_table(outcome.points, title))
    for point in outcome.points:
        if "error" in point:
            out.print(escape(f"error: {point['layers']} layers, {point['mode']}: {point['error']}"), soft_wrap=True)
    for note in outcome.notes:
        out.print(escape(f"note: {note}"), soft_wrap=True)


def _table(points: Sequence[Point], title: str) -> Table:
    caption = "times in seconds; gain: first step against uncached; start-up is no part of the first step"
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("layers", justify="right", no_wrap=True)
    table.add_column("mode", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    layers = None
    for point in points:
        if layers is not None and point["layers"] != layers:
            table.add_section()
        layers = point["layers"]
        table.add_row(*_row(point, points))
    return table


def _row(point: Point, points: Sequence[Point]) -> list[str]:
    start = [str(point["layers"]), point["mode"]]
    if "seconds" not in point:
        return [*start, "failed"]
    seconds = point["seconds"]
    counts = [_count(point[name]) for name in _COUNTS]
    times = [f"{seconds[phase]:.3f}" for phase in _TIMES.values()]
    return [*start, *counts, *times, _gain(point, points), f"{seconds['startup']:.1f}"]


def _gain(point: Point, points: Sequence[Point]) -> str:
    """How many times faster than without any cache."""
    for other in points:
        if other["mode"] == "uncached" and other["layers"] == point["layers"] and "seconds" in other:
            return f"{other['seconds']['first_step'] / point['seconds']['first_step']:.2f} x"
    return ""


def _count(value: Any) -> str:
    return "-" if value is None else str(value)
