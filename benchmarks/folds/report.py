"""The tables about folds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean, mean
from typing import Any

from rich.table import Table

from benchmarks.common.report import console, make_table, print_line
from benchmarks.folds.spec import list_plans, size

Point = Mapping[str, Any]
Result = Mapping[str, Any]

_COSTS = ("launches", "host us", "table us")
"""Of the longest chain. The table's are part of the host's."""


def print_result(result: Result) -> None:
    """Prints all tables, then what went wrong or was left out."""
    out = console()
    for table in make_tables(result):
        out.print(table)
    for point in result["points"]:
        if "error" in point:
            print_line(out, f"error: {_what(point)}: {point['error']}")
    for note in result["notes"]:
        print_line(out, f"note: {note}")


def make_tables(result: Result) -> list[Table]:
    """Returns one table of chains for each size, one of widths for each dtype, and one that sums the chains up."""
    points = result["points"]
    chains = [point for point in points if point["kind"] == "chain"]
    widths = [point for point in points if point["kind"] == "width"]
    found = [_chains(dtype, term_bytes, of_size) for (dtype, term_bytes), of_size in _group_by_size(chains).items()]
    found += [
        _widths(dtype, [point for point in widths if point["dtype"] == dtype])
        for dtype in dict.fromkeys(point["dtype"] for point in widths)
    ]
    if chains:
        speed = result["copy"]["bytes_per_second"] / 1e12
        found.append(_summary(chains, f"the floor is that of a copy at {speed:.2f} TB/s"))
    return found


def group_by_name(points: Iterable[Point]) -> dict[str, dict[int, Point]]:
    """Returns the chains of one size: for each plan, the point of each number of terms. What failed is among them."""
    found: dict[str, dict[int, Point]] = {}
    for point in points:
        for name in point["plans"] if point.get("way") == "folds" else [_table_name(point)]:
            found.setdefault(name, {})[point["terms"]] = point
    known = [name for name in list_plans() if name in found]
    return {name: found[name] for name in [*known, *(name for name in found if name not in known)]}


def divide_by_floor(point: Point) -> float | None:
    """Returns how many times the floor a call takes; None if it failed."""
    return None if "error" in point else point["seconds"]["run"] / point["seconds"]["floor"]


def _table_name(point: Point) -> str:
    return f"table {point['block']}/{point['ahead']}" if "way" in point else "all"


def _group_by_size(points: Iterable[Point]) -> dict[tuple[str, int], list[Point]]:
    found: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        found.setdefault((point["dtype"], point["term_bytes"]), []).append(point)
    return dict(sorted(found.items()))


def mean_over_floor(points: Iterable[Point]) -> float:
    """Returns the geometric mean of the points that did not fail."""
    return geometric_mean(ratio for ratio in map(divide_by_floor, points) if ratio is not None)


def _chains(dtype: str, term_bytes: int, points: Sequence[Point]) -> Table:
    ways, rows = group_by_name(points), []
    for terms in sorted({point["terms"] for point in points}):
        of_terms = [of_name.get(terms) for of_name in ways.values()]
        floors = [point["seconds"]["floor"] for point in of_terms if point and "seconds" in point]
        rows.append([str(terms), f"{1e6 * floors[0]:.1f}" if floors else "", *map(_ratio, of_terms)])
    columns = ("terms", "floor, us", *ways)
    return make_table(f"chains of {dtype}, {size(term_bytes)} a term", "time over the floor", columns, rows)


def _widths(dtype: str, points: Sequence[Point]) -> Table:
    sizes, rows = sorted({point["term_bytes"] for point in points}), []
    for width in sorted({point["terms"] for point in points}):
        of_width = {point["term_bytes"]: point for point in points if point["terms"] == width}
        speeds = [_speed(of_width.get(term_bytes)) for term_bytes in sizes]
        rows.append([str(width), _compiling(of_width.values()), *speeds])
    caption = "TB/s, and time over the floor, which has the fold's own sums in it; compile: the slowest"
    return make_table(f"single folds of {dtype}", caption, ["width", "compile, s", *map(size, sizes)], rows)


def _summary(chains: Sequence[Point], caption: str) -> Table:
    """Sums up the plans with every length of chain that any has, as means of others could not be compared."""
    by_size = _group_by_size(chains)
    ways = [group_by_name(points) for points in by_size.values()]
    lengths = [{point["terms"] for point in points} for points in by_size.values()]
    longest, rows = max(point["terms"] for point in chains), []
    for name in dict.fromkeys(name for of_size in ways for name in of_size):
        of_name = [of_size.get(name, {}) for of_size in ways]
        means = [_mean(points, wanted) for points, wanted in zip(of_name, lengths, strict=True)]
        if any(means):
            ends = [points[longest] for points in of_name if "seconds" in points.get(longest, {})]
            every = [point for points in of_name for point in points.values()]
            rows.append([name, *means, _compiling(every), *_costs(ends)])
    heads = [f"{dtype}, {size(term_bytes)}" for dtype, term_bytes in by_size]
    columns = ["<plan", *heads, "compile, s", *(f"{what} of {longest}" for what in _COSTS)]
    return make_table("all chains: time over the floor, geometric mean", caption, columns, rows)


def _mean(points: Mapping[int, Point], wanted: set[int]) -> str:
    good = {terms for terms, point in points.items() if "error" not in point}
    return f"{mean_over_floor(points.values()):.3f}" if good == wanted else ""


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
    ratio = divide_by_floor(point)
    return "failed" if ratio is None else f"{ratio:.2f}"


def _speed(point: Point | None) -> str:
    if point is None or "error" in point:
        return _ratio(point)
    return f"{point['moved_bytes'] / point['seconds']['run'] / 1e12:.2f}, {_ratio(point)}"


def _what(point: Point) -> str:
    way = point.get("way", "all")
    how = f"{' '.join(map(str, point['folds']))}" if way == "folds" else _table_name(point)
    return f"{point['kind']} of {point['terms']}, {point['dtype']}, {size(point['term_bytes'])} a term, {how}"
