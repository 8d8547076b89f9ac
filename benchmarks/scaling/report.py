"""The scaling benchmark's outcome as tables: what was compiled and what it computed, seconds, and how they grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.choices import name_plans
from benchmarks.common.report import Column, console, print_line, table_by_layers
from benchmarks.common.results import Outcome, Point
from benchmarks.scaling.summary import summarize

_WITHOUT = "no cache"


def print_outcome(outcome: Outcome, title: str) -> None:
    """Prints tables of all points, then what went wrong or was left out."""
    out, points = console(), outcome.points
    out.print(_table(points, title, _counts(), _COUNTS_CAPTION))
    for line in explain_counts(points):
        print_line(out, line)
    out.print(_table(points, "seconds", _seconds(points), _SECONDS_CAPTION))
    if any("steady" in point for point in points):
        out.print(_table(points, "later steps", _STEADY, _STEADY_CAPTION))
    _print_summary(out, summarize(points))
    for point in points:
        where = f"{point['layers']} layers, {point['mode']}"
        if "error" in point:
            print_line(out, f"error: {where}: {point['error']}")
        for reason, count in point.get("unkept", {}).items():
            print_line(out, f"note: {where}: {count} not kept: {reason}")
    for note in outcome.notes:
        print_line(out, f"note: {note}")


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
    """Returns a row for each point; those without results say in each cell why there is none."""
    rows = [
        (point["layers"], point["mode"], point if "seconds" in point else point.get("not_run", "failed"))
        for point in points
    ]
    return table_by_layers(title, caption, "mode", columns, rows)


def _counts() -> list[Column[Point]]:
    return [
        *(Column(name, _count(name), _WITHOUT) for name in ("regions", "templates", "compiles", "loads")),
        Column("sums", _plans),
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
        """Says how many times faster than without any cache."""
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


_OURS = ("cached", "own")
_WHY_COUNTS_CHANGE = {
    "inline": "every region adds up its sum anew, which keeps no sum alive; where that makes more than two lengths, by "
    "folds of 1, 2, 4, 8, 16 and 32 terms that all regions share: for twice the depth one executable more",
    "fold": "every region's sum is added up anew by folds of 1, 2, 4, 8, 16 and 32 terms that all regions share",
    "carry": "where adding up anew would read four times as much, a region hands its sum to the next, which adds one "
    "term: all regions are alike, and the executables the same at every depth",
    "segmented": "some sums are kept and those between are rebuilt: a few lengths of segments, an executable for each",
}


def explain_counts(points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Explains each mode of ours whose number of compiles changes with the depth, by the plans for its streams."""
    for mode in _OURS:
        of_mode = [point for point in points if point["mode"] == mode and "seconds" in point]
        if len({point["compiles"] for point in of_mode}) > 1 and any(map(_plans, of_mode)):
            counts = (f"{point['compiles']} at {point['layers']} ({_plans(point) or 'one sum'})" for point in of_mode)
            yield f"compiles of {mode}, by layers: {', '.join(counts)}"
            named = {choice["plan"] for point in of_mode for choice in point["choices"]}
            yield from (f"  {plan}: {words}" for plan, words in _WHY_COUNTS_CHANGE.items() if plan in named)


def _plans(point: Mapping[str, Any]) -> str | None:
    """Returns what became of the sums of a point's residual streams; None if it has none."""
    return name_plans(point["choices"]) if point.get("choices") else None


def _print_summary(out: Console, found: Mapping[str, Any]) -> None:
    """Prints how first steps grow, and modes by each other."""
    for mode, growth in found["growth"].items():
        before, last = growth["deepest"]
        exponent = "" if growth["slope"] is None else f"; as layers to the power of {growth['slope']:.2f} from 8 on"
        out.print(f"{mode}: first step at {last} layers is {growth['ratio']:.2f} times that at {before}{exponent}")
    rows = [(record["layers"], pair, record) for pair, of in found["ratios"].items() for record in of]
    if rows:
        rows.sort(key=lambda row: row[0])
        out.print(table_by_layers("one mode by another", "ratios", "modes", _ratio_columns(), rows))


def _ratio_columns() -> list[Column[Mapping[str, Any]]]:
    def ratio(name: str) -> Callable[[Mapping[str, Any]], str | None]:
        return lambda record: None if record[name] is None else f"{record[name]:.2f}"

    return [Column(title, ratio(name), "not timed") for title, name in _RATIOS.items()]
