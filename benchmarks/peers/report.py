"""The outcome of the benchmark of peers as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from benchmarks.common.report import Column, console, print_line, table_by_layers
from benchmarks.common.results import Outcome, Point

_VERDICTS: dict[bool | None, str] = {True: "yes", False: "WRONG", None: "?"}

_FIRST_CAPTION = (
    "seconds, synchronized; start-up is no part of the first step; warm: a second process with the same caches"
)
_COUNTS_CAPTION = "warm units, warm loads: compiled in the second process, and found by it; correct: in both"
_KEPT = "keeps none"


def _seconds(process: str, part: str) -> Callable[[Point], str | None]:
    def cell(point: Point) -> str | None:
        seconds = point["seconds"][process]
        return f"{seconds[part]:.2f}" if seconds else None

    return cell


def _count(name: str, process: str = "cold") -> Callable[[Point], str | None]:
    def cell(point: Point) -> str | None:
        value = (point if process == "cold" else point.get("warm") or {}).get(name)
        return None if value is None else str(value)

    return cell


_FIRST: list[Column[Point]] = [
    *(Column(name, _seconds("cold", part)) for name, part in (("cold", "total"), ("trace", "trace"))),
    *(Column(name, _seconds("cold", name)) for name in ("compile", "execute")),
    Column("warm", _seconds("warm", "total"), _KEPT),
    Column("start-up", lambda point: f"{point['seconds']['startup']:.1f}"),
]
_COUNTS: list[Column[Point]] = [
    Column("kernels", _count("kernels"), "not counted"),
    Column("units", _count("units"), "not counted"),
    Column("warm units", _count("units", "warm"), _KEPT),
    Column("warm loads", _count("loads", "warm"), "not counted"),
    Column("breaks", _count("graph_breaks"), "no Dynamo"),
    Column("correct", lambda point: _VERDICTS[point["correct"]]),
]
_STEADY_CAPTION = "medians, in brackets quartiles; host: until a step is launched; GiB: at most allocated in a step"
_STEADY: list[Column[Point]] = [
    Column("step, ms", lambda point: _spread(point["step_ms"], 1)),
    Column("host, ms", lambda point: _spread(point["host_us"], 1e-3), "no GPU"),
    Column("GiB", lambda point: f"{point['peak_bytes'] / 2**30:.2f}" if point["peak_bytes"] else None, "no GPU"),
    Column("largest error", lambda point: _error(point, "worst_error"), "not checked"),
    Column("eager's", lambda point: _error(point, "worst_error_of_eager"), "not checked"),
]


def print_outcome(outcome: Outcome, title: str) -> None:
    """Prints a table of all points, then what went wrong, was left out, or must be known."""
    out = console()
    out.print(_table(outcome.points, f"first step: {title}", _FIRST, _FIRST_CAPTION))
    out.print(_table(outcome.points, "what was compiled", _COUNTS, _COUNTS_CAPTION))
    out.print(_table(outcome.points, f"later steps: {title}", _STEADY, _STEADY_CAPTION))
    for point in outcome.points:
        where = f"{point['layers']} layers, {point['peer']}"
        for problem in filter(None, (point.get("error"), point.get("error_of_wrong"))):
            print_line(out, f"error: {where}: {problem}")
        for note in point.get("notes", ()):
            print_line(out, f"note: {where}: {note}")
    for note in outcome.notes:
        print_line(out, f"note: {note}")


def _table(points: Sequence[Point], title: str, columns: Sequence[Column[Point]], caption: str) -> Table:
    rows = [(point["layers"], point["peer"], "failed" if "error" in point else point) for point in points]
    return table_by_layers(title, caption, "peer", columns, rows)


def _error(point: Point, name: str) -> str | None:
    return f"{point[name]:.2g}" if point[name] is not None else None


def _spread(values: Mapping[str, float] | None, scale: float) -> str | None:
    if values is None:
        return None
    median, first, third = (values[name] * scale for name in ("median", "q1", "q3"))
    return f"{median:.2f} ({first:.2f}, {third:.2f})"
