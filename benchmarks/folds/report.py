"""The tables about folds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from statistics import mean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from benchmarks.folds.spec import names, size

Point = Mapping[str, Any]
Result = Mapping[str, Any]

_COSTS = ("launches", "host us", "table us")
"""Of the longest chain. The table's are part of the host's."""


def print_result(result: Result) -> None:
    """Prints all tables, then what went wrong or was left out."""
    from benchmarks.common import report

    out = report.console()
    for table in tables(result):
        out.print(table)
    for point in result["points"]:
        if "error" in point:
            out.print(escape(f"error: {_what(point)}: {point['error']}"), soft_wrap=True)
    for note in result["notes"]:
        out.print(escape(f"note: {note}"), soft_wrap=True)


def tables(result: Result) -> list[Table]:
    """One of chains for each size, one of widths for each dtype, and one that sums the chains up."""
    points = result["points"]
    chains = [point for point in points if point["kind"] == "chain"]
    widths = [point for point in points if point["kind"] == "width"]
    found = [_chains(place, of_place) for place, of_place in _by_place(chains).items()]
    found += [
        _widths(dtype, [point for point in widths if point["dtype"] == dtype])
        for dtype in dict.fromkeys(point["dtype"] for point in widths)
    ]
    if chains:
        speed = result["copy"]["bytes_per_second"] / 1e12
        found.append(_summary(chains, f"the floor is that of a copy at {speed:.2f} TB/s"))
    return found


def by_name(points: Iterable[Point]) -> dict[str, dict[int, Point]]:
    """The chains of one size: for each plan, the point of each number of terms. What failed is among them."""
    found: dict[str, dict[int, Point]] = {}
    for point in points:
        for name in point["plans"] if point.get("way") == "folds" else [_table_name(point)]:
            found.setdefault(name, {})[point["terms"]] = point
    known = [name for name in names() if name in found]
    return {name: found[name] for name in [*known, *(name for name in found if name not in known)]}


def over_floor(point: Point) -> float | None:
    """How many times the floor a call takes; None if it failed."""
    return None if "error" in point else point["seconds"]["run"] / point["seconds"]["floor"]


def _table_name(point: Point) -> str:
    return f"table {point['block']}/{point['ahead']}" if "way" in point else "all"


def _by_place(points: Iterable[Point]) -> dict[tuple[str, int], list[Point]]:
    found: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        found.setdefault((point["dtype"], point["term_bytes"]), []).append(point)
    return dict(sorted(found.items()))


def _chains(place: tuple[str, int], points: Sequence[Point]) -> Table:
    ways = by_name(points)
    columns = ["terms", "floor, us", *ways]
    table = _table(f"chains of {place[0]}, {size(place[1])} a term", "time over the floor", columns)
    for terms in sorted({point["terms"] for point in points}):
        of_terms = [of_name.get(terms) for of_name in ways.values()]
        floors = [point["seconds"]["floor"] for point in of_terms if point and "seconds" in point]
        table.add_row(str(terms), f"{1e6 * floors[0]:.1f}" if floors else "", *map(_ratio, of_terms))
    return table


def _widths(dtype: str, points: Sequence[Point]) -> Table:
    sizes = sorted({point["term_bytes"] for point in points})
    caption = "TB/s, and time over the floor, which has the fold's own sums in it; compile: the slowest"
    table = _table(f"single folds of {dtype}", caption, ["width", "compile, s", *map(size, sizes)])
    for width in sorted({point["terms"] for point in points}):
        of_width = {point["term_bytes"]: point for point in points if point["terms"] == width}
        cells = [_speed(of_width.get(term_bytes)) for term_bytes in sizes]
        table.add_row(str(width), _compiling(of_width.values()), *cells)
    return table


def _summary(chains: Sequence[Point], caption: str) -> Table:
    """Only where a plan has every length of chain that any has, as means of others could not be compared."""
    places = {place: by_name(points) for place, points in _by_place(chains).items()}
    longest = max(point["terms"] for point in chains)
    heads = [f"{dtype}, {size(term_bytes)}" for dtype, term_bytes in places]
    columns = ["<plan", *heads, "compile, s", *(f"{what} of {longest}" for what in _COSTS)]
    table = _table("all chains: time over the floor, geometric mean", caption, columns)
    for name in dict.fromkeys(name for ways in places.values() for name in ways):
        of_name = [ways.get(name, {}) for ways in places.values()]
        lengths = [{point["terms"] for point in points} for points in _by_place(chains).values()]
        means = [_mean(points, wanted) for points, wanted in zip(of_name, lengths, strict=True)]
        if any(means):
            ends = [points[longest] for points in of_name if "seconds" in points.get(longest, {})]
            every = [point for points in of_name for point in points.values()]
            table.add_row(name, *means, _compiling(every), *_costs(ends))
    return table


def _mean(points: Mapping[int, Point], wanted: set[int]) -> str:
    ratios = [ratio for ratio in map(over_floor, points.values()) if ratio is not None]
    return f"{prod(ratios) ** (1 / len(ratios)):.3f}" if ratios and len(ratios) == len(wanted) else ""


def _costs(ends: Sequence[Point]) -> list[str]:
    if not ends:
        return [""] * len(_COSTS)
    return [str(ends[0]["launches"]), _microseconds(ends, "host"), _microseconds(ends, "table")]


def _microseconds(points: Sequence[Point], part: str) -> str:
    seconds = [point["seconds"][part] for point in points if part in point["seconds"]]
    return f"{1e6 * mean(seconds):.0f}" if seconds else ""


def _compiling(points: Iterable[Point]) -> str:
    seconds = [point["seconds"]["compile"] for point in points if "seconds" in point]
    return f"{max(seconds):.2f}" if seconds else ""


def _ratio(point: Point | None) -> str:
    if point is None:
        return ""
    ratio = over_floor(point)
    return "failed" if ratio is None else f"{ratio:.2f}"


def _speed(point: Point | None) -> str:
    if point is None or "error" in point:
        return _ratio(point)
    return f"{point['moved_bytes'] / point['seconds']['run'] / 1e12:.2f}, {_ratio(point)}"


def _what(point: Point) -> str:
    way = point.get("way", "all")
    how = f"{' '.join(map(str, point['folds']))}" if way == "folds" else _table_name(point)
    return f"{point['kind']} of {point['terms']}, {point['dtype']}, {size(point['term_bytes'])} a term, {how}"


def _table(title: str, caption: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name.removeprefix("<"), justify="left" if name.startswith("<") else "right")
    return table
