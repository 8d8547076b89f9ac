"""Tables of second processes, of starts on a CPU, and of seconds that were saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.figures.markdown import format_seconds, make_table

Result = Mapping[str, Any]
Point = Mapping[str, Any]


def tabulate_parts(*results: Result) -> str:
    """Shows what the first step of a second process consists of, beside those that keep less or otherwise."""
    columns = ("<model", "<way", "<process", "first step", "tracing", *_PARTS, "rest", "traces")
    return make_table(columns, [row for result in results for row in _parts_rows(result)])


_PARTS = ("key", "reads", "load", "build", "guards", "kernels")


def _parts_rows(result: Result) -> list[list[str]]:
    options = result["environment"]["options"]
    size = "Llama-2-7b" if options["width"] == "real" else f"narrow {options['model']}"
    return [_parts_row(point, size) for point in result["points"] if not point.get("error", "").startswith("not run")]


def _parts_row(point: Point, size: str) -> list[str]:
    head = [f"{size}, {point['layers']} layers", point["way"], point["process"]]
    if "seconds" not in point:
        return [*head, "failed", *[""] * (len(_PARTS) + 3)]
    seconds, first = point["seconds"], point["repeats"][0]
    parts = [f"{1e3 * seconds[part]:.0f} ms" if seconds.get(part) else "" for part in _PARTS]
    rest = seconds["rest"] + seconds.get("compile", 0.0)
    times = [f"{format_seconds(seconds['total'])} s", f"{format_seconds(seconds['trace'])} s"]
    traces = str(first["counts"]["traces"]) if "counts" in first else ""
    return [*head, *times, *parts, f"{format_seconds(rest)} s", traces]


_PLAIN = "thunder"


def tabulate_cpu_starts(*results: Result) -> str:
    """Shows the first and the second start on a CPU, in seconds of processors, and what the first is to Thunder's."""
    points = [point for result in results for point in result["points"]]
    firsts = {(point["model"], point["way"]): point for point in points if point["start"] == "first"}
    seconds = {(point["model"], point["way"]): point for point in points if point["start"] == "second"}
    columns = ("<model", "<way", "first start", "of it others", "to Thunder's", "second start", "later step")
    rows = (
        _cpu_row(point, seconds[identity], firsts[point["model"], _PLAIN])
        for identity, point in firsts.items()
        if identity in seconds
    )
    return make_table(columns, rows)


def tabulate_hugging_face(result: Result) -> str:
    """Shows CPU seconds of first steps through thunderfx, with and without programs."""
    columns = ("<model", "parts for Thunder", "first", "without programs", "second", "without programs", "ratio")
    return make_table(columns, [_list_hugging_face(point) for point in result["points"]])


def _list_hugging_face(point: Point) -> list[str]:
    if "error" in point:
        return [point["model"], "failed", *[""] * 5]
    programs, templates = point["programs"], point["templates"]
    last = programs["second"]
    parts = f"{last['parts_with_thunder']} of {last['parts']}"
    pairs = [(each["first"], each["second"]) for each in (programs, templates)]
    (first, second), (first_without, second_without) = [[one["cpu_seconds"] for one in pair] for pair in pairs]
    times = [f"{format_seconds(value)} s" for value in (first, first_without, second, second_without)]
    return [point["model"], parts, *times, f"{second / second_without:.2f}"]


def tabulate_saved_seconds(result: Result) -> str:
    """Shows the seconds that were reported as saved, and the real difference."""
    columns = ("<model", "<process", "Thunder alone", "fusioncache", "difference", "reported", "<within 20%, or 0.5 s")
    rows = [
        [
            point["model"],
            point["comparison"],
            *(f"{point['seconds'][name]:.2f} s" for name in ("alone", "fusioncache", "real", "reported")),
            "yes" if point["agrees"] else "no",
        ]
        for point in result["points"]
    ]
    return make_table(columns, rows)


def _cpu_row(first: Point, second: Point, plain: Point) -> list[str]:
    if "error" in first or "error" in second:
        return [first["model"], first["way"], "failed", "", "", "", ""]
    total, others = _count_seconds(first), _count_seconds(second)
    times = [f"{format_seconds(value)} s" for value in (total, first["children_s"])]
    ratio = f"{total / _count_seconds(plain):.2f}"
    return [first["model"], first["way"], *times, ratio, f"{format_seconds(others)} s", f"{first['step_ms']:.2f} ms"]


def _count_seconds(point: Point) -> float:
    return float(point["own_s"] + point["children_s"])
