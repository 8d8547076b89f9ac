"""What three processes said of a model, in one point, and all points as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point
from benchmarks.program_equality.spec import FIRST, SECOND, THUNDER
from benchmarks.zoo.comparison import name_point, print_error
from benchmarks.zoo.spec import ZooSpec

Said = Mapping[str, Mapping[str, Any]]
"""What each process said, by its name."""

_COUNTS = ("traces", "programs_made", "programs_loaded", "regions", "templates", "compiles", "loads")
_REASONS = ("programs_refused", "unkept", "bypasses", "explained")


def make_point(spec: ZooSpec, said: Said) -> Point:
    """Returns what was found out about a model, with ``error`` if anything is wrong."""
    expected = said[THUNDER].get("digests", {})
    differing = {process: find_differing(expected, said[process].get("digests", {})) for process in (FIRST, SECOND)}
    point: Point = asdict(spec) | {
        "layers": said[THUNDER]["layers"],
        "way": said[THUNDER]["way"],
        "tensors": len(expected),
        "differing": differing,
        "seconds": {process: each.get("seconds") for process, each in said.items()},
        "program_seconds": {process: said[process]["program_seconds"] for process in (FIRST, SECOND)},
    }
    for process in (FIRST, SECOND):
        point[process] = {name: said[process][name] for name in (*_COUNTS, *_REASONS) if said[process].get(name)}
    problem = find_problem(spec, said, differing)
    return point | ({"error": problem} if problem else {})


def find_differing(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Returns the names of tensors that have other bits, or that only one of two processes has."""
    return [name for name in dict.fromkeys([*expected, *found]) if expected.get(name) != found.get(name)]


def find_problem(spec: ZooSpec, said: Said, differing: Mapping[str, Sequence[str]]) -> str | None:
    """Returns what is wrong with a model, or None."""
    first, second = said[FIRST], said[SECOND]
    reasons = [*first["programs_refused"], *second["programs_refused"], *second["explained"]]
    if second["traces"] or "error" in second or second["programs_loaded"] != first["traces"]:
        why = "; ".join(reasons) or second.get("error", "nothing says why")
        return f"{second['programs_loaded']} of {first['traces']} programs are loaded: {why}"
    for process in (THUNDER, FIRST):
        if "error" in said[process]:
            return f"{process}: {said[process]['error']}"
    if second["compiles"] and spec.backend != "eager":  # which has nothing to keep
        return f"the second process compiles {second['compiles']}"
    for process, names in differing.items():
        if names:
            return f"{process}: {len(names)} of {len(said[THUNDER]['digests'])} tensors differ, the first is {names[0]}"
    return None


def print_points(points: Sequence[Point], machine: str) -> None:
    """Prints a table of all points, then what went wrong."""
    out = console()
    caption = "bitwise: tensors with Thunder's bits in the first and the second process; s: of the first step"
    columns = ["<model", "layers", "<way", "made", "loaded", "traces", "compiles", "loads", "bitwise"]
    columns += ["s, Thunder", "s, first", "s, second"]
    rows = [_cells(point) for point in points]
    out.print(make_table(f"Programs in a second process on {machine}", caption, columns, rows, wrap=False))
    for point in points:
        print_error(out, point)


def _cells(point: Point) -> list[str]:
    cells = name_point(point)
    if "tensors" not in point:
        return [*cells, "failed"]
    second = point[SECOND]
    counts = [str(second.get(name, 0)) for name in ("programs_loaded", "traces", "compiles", "loads")]
    same = [str(point["tensors"] - len(names)) for names in point["differing"].values()]
    bitwise = f"{', '.join(same)} of {point['tensors']}"
    seconds = ["" if value is None else f"{value:.2f}" for value in point["seconds"].values()]
    return [*cells, point["way"], str(point[FIRST].get("programs_made", 0)), *counts, bitwise, *seconds]
