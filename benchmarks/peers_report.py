"""The outcome of the benchmark of peers as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from benchmarks import report
from benchmarks.peers_run import Outcome, Point

_VERDICTS: dict[bool | None, str] = {True: "yes", False: "WRONG", None: "?"}

Column = Callable[[Point], str]

_FIRST_CAPTION = (
    "seconds, synchronized; start-up is no part of the first step; warm: a second process with the same caches"
)
_FIRST: dict[str, Column] = {
    "cold": lambda point: _seconds(point, "cold", "total"),
    "trace": lambda point: _seconds(point, "cold", "trace"),
    "compile": lambda point: _seconds(point, "cold", "compile"),
    "execute": lambda point: _seconds(point, "cold", "execute"),
    "warm": lambda point: _seconds(point, "warm", "total"),
    "start-up": lambda point: f"{point['seconds']['startup']:.1f}",
    "kernels": lambda point: _count(point["kernels"]),
    "units": lambda point: _count(point["units"]),
    "breaks": lambda point: _count(point["graph_breaks"]),
    "correct": lambda point: _VERDICTS[point["correct"]],
}
_STEADY_CAPTION = "medians, in brackets quartiles; host: until a step is launched; GiB: at most allocated in a step"
_STEADY: dict[str, Column] = {
    "step, ms": lambda point: _spread(point["step_ms"], 1),
    "host, ms": lambda point: _spread(point["host_us"], 1e-3),
    "GiB": lambda point: f"{point['peak_bytes'] / 2**30:.2f}" if point["peak_bytes"] else "-",
    "largest error": lambda point: f"{point['worst_error']:.2g}" if point["worst_error"] is not None else "-",
    "eager's": lambda point: f"{point['worst_error_of_eager']:.2g}" if point["worst_error"] is not None else "-",
}


def print_outcome(outcome: Outcome, title: str) -> None:
    """Prints a table of all points, then what went wrong, was left out, or must be known."""
    out = report.console()
    out.print(_table(outcome.points, f"first step: {title}", _FIRST, _FIRST_CAPTION))
    out.print(_table(outcome.points, f"later steps: {title}", _STEADY, _STEADY_CAPTION))
    for point in outcome.points:
        where = f"{point['layers']} layers, {point['peer']}"
        for problem in filter(None, (point.get("error"), point.get("error_of_wrong"))):
            out.print(escape(f"error: {where}: {problem}"), soft_wrap=True)
        for note in point.get("notes", ()):
            out.print(escape(f"note: {where}: {note}"), soft_wrap=True)
    for note in outcome.notes:
        out.print(escape(f"note: {note}"), soft_wrap=True)


def _table(points: Sequence[Point], title: str, columns: Mapping[str, Column], caption: str) -> Table:
    rows = ((point["layers"], [point["peer"], *_cells(point, columns)]) for point in points)
    return report.table_by_layers(title, caption, ("peer", *columns), rows)


def _cells(point: Point, columns: Mapping[str, Column]) -> list[str]:
    return ["failed"] if "error" in point else [cell(point) for cell in columns.values()]


def _seconds(point: Point, process: str, part: str) -> str:
    seconds = point["seconds"][process]
    return f"{seconds[part]:.2f}" if seconds else "-"


def _spread(values: Mapping[str, float] | None, scale: float) -> str:
    if values is None:
        return "-"
    median, first, third = (values[name] * scale for name in ("median", "q1", "q3"))
    return f"{median:.2f} ({first:.2f}, {third:.2f})"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)
