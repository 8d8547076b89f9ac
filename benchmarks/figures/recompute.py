"""Tables of recompute: how first steps grow, and what memory it saves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.common.choices import name_plans
from benchmarks.figures.markdown import format_seconds, make_table
from benchmarks.figures.tables import list_compiles
from benchmarks.memory import format_bitwise, format_gibibytes

Result = Mapping[str, Any]
Point = Mapping[str, Any]


def _points(results: Sequence[Result]) -> list[Point]:
    return [point for result in results for point in result["points"]]


def tabulate_modes(*results: Result) -> str:
    """Shows first step and compiles where fusioncache recomputes, where nothing does, and where Thunder is made to."""
    ours = ("layers", "own recompute: compiles", "compile seconds", "first step", "fusioncache's share")
    theirs = ("no recompute: compiles", "compile seconds", "first step", "own to it", "step, own to it")
    foreign = ("Thunder's recompute, cached: first step", "uncached: first step", "to own")
    return make_table((*ours, *theirs, *foreign), _mode_rows(_points(results)))


def _mode_rows(points: list[Point]) -> Iterator[list[str]]:
    measured = {(point["mode"], point["layers"]): point for point in points if "seconds" in point}
    for layers in sorted({layers for _, layers in measured}):
        own, baseline, cached, uncached = (
            measured.get((mode, layers)) for mode in ("own", "baseline", "cached", "uncached")
        )
        share = f"{100 * own['share']:.1f}%" if own else ""
        of_baseline = [_divide(own, baseline, *path) for path in (("seconds", "first_step"), ("steady", "step"))]
        foreign = [_first_step(cached), _first_step(uncached), _divide(uncached, own, "seconds", "first_step")]
        yield [str(layers), *_mode(own), share, *_mode(baseline), *of_baseline, *foreign]


def _mode(point: Point | None) -> list[str]:
    return list_compiles(point) if point else ["", "", "not run"]


def _first_step(point: Point | None) -> str:
    return f"{format_seconds(point['seconds']['first_step'])} s" if point else "not run"


def _divide(one: Point | None, other: Point | None, group: str, name: str) -> str:
    if not one or not other or not one.get(group) or not other.get(group):
        return ""
    return f"{one[group][name] / other[group][name]:.2f}"


def tabulate_memory(*results: Result) -> str:
    """Shows what each plan saves of the memory, and what it costs."""
    columns = ("<model", "layers", "<plan", "<chosen", "GiB saved for backward", "less", "peak, GiB", "less")
    points = _points(results)
    return make_table((*columns, "step", "to the reference's", "compiles", "bitwise"), map(_memory_row, points))


def _memory_row(point: Point) -> list[str]:
    if "error" in point:
        return [point["model"], "", point["name"], point["error"], *[""] * 8]
    steady, trade = point["steady"], point["against"] if point["plan"] != "reference" else None
    saved, peak = ([format_gibibytes(trade[name])] if trade else [""] for name in ("saved", "peak"))
    memory = [format_gibibytes(point["saved"]), *saved, format_gibibytes(steady["peak"]), *peak]
    step = [f"{1e3 * steady['step']:.1f} ms", f"{trade['step']:.3f}" if trade else ""]
    chosen = name_plans(point["choices"])
    counts = [str(point["compiles"] + point["compiles_later"]), format_bitwise(point)]
    return [point["model"], str(point["layers"]), point["name"], chosen, *memory, *step, *counts]
