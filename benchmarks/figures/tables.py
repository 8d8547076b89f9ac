"""Tables of first steps, models and shortcuts, from the results that it shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.figures.markdown import format_seconds, make_table

Result = Mapping[str, Any]
Point = Mapping[str, Any]

_STEPS = {
    "interpret": "interpreting the model",
    "prologue": "prologue",
    "grad": "deriving the backward pass",
    "claim": "executors claim operations",
    "fuse": "fusing",
    "rematerialize": "rematerialization",
    "cleanup": "dead code, `del`",
    "codegen": "printing Python",
    "fusioncache": "templates, keys, plans",
    "compile": "compiling",
    "rest": "rest",
    "total": "first step",
}

_WAYS = {"own": "Thunder's own", "fast": "fusioncache", "before": "fusioncache at `174f39c`"}


def list_compiles(point: Point) -> list[str]:
    """Returns the cells of a point's compiles, their seconds, and its first step."""
    spent = point["seconds"]
    return [str(point["compiles"]), format_seconds(spent["compile"]), f"{format_seconds(spent['first_step'])} s"]


def tabulate_peers(result: Result, *later: Result) -> str:
    """Shows first and later steps of every peer, and then of those that were measured later."""
    columns = ("<peer", "first step", "tracing", "compiling", "second process", "step", "host time")
    rows = [_peer_row(point, point["peer"]) for point in result["points"]]
    rows += [_peer_row(point, _name_with_commit(point, other)) for other in later for point in other["points"]]
    return make_table((*columns, "GiB", "kernels", "correct"), rows)


def _name_with_commit(point: Point, result: Result) -> str:
    return f"{point['peer']} at `{result['environment']['commit'][:7]}`"


def _peer_row(point: Point, name: str) -> list[str]:
    cold, warm = point["seconds"]["cold"], point["seconds"]["warm"]
    spent = [f"{format_seconds(cold['total'])} s", format_seconds(cold["trace"]), format_seconds(cold["compile"])]
    spent.append(f"{format_seconds(warm['total'])} s" if warm else "the same")
    later = [f"{point['step_ms']['median']:.1f} ms", f"{point['host_us']['median'] / 1000:.1f} ms"]
    counts = [f"{point['peak_bytes'] / 2**30:.2f}", str(point["kernels"] or "")]
    return [name, *spent, *later, *counts, "yes" if point["correct"] else str(point["error_of_wrong"])]


def tabulate_first_step(result: Result) -> str:
    """Shows the passes of a first step, with Thunder's own tracing and with the fast one."""
    points = result["points"]
    columns = [f"{point['layers']} layers, {point['tracing']}" for point in points]
    rows = ([name, *(format_seconds(point["seconds"][step]) for point in points)] for step, name in _STEPS.items())
    return make_table(("<seconds", *columns), rows)


def tabulate_ways(*results: Result) -> str:
    """Shows how long first steps take, by who traces and how many processes compile beside."""
    columns = ("layers", "<who traces", "<processes that compile", "tracing", "from then on", "first step")
    return make_table(columns, [_way_row(point) for result in results for point in result["points"]])


def _way_row(point: Point) -> list[str]:
    times = [f"{format_seconds(point['seconds'][part])} s" for part in ("trace", "after_trace", "total")]
    beside = "" if point["jobs"] is None else str(point["jobs"] or "none")
    if point["jobs"] and point["start"] == "ready":
        beside += ", there before"
    return [str(point["layers"]), _WAYS.get(point["tracing"], str(point["tracing"])), beside, *times]


def tabulate_models(host: Result, exact: Result, *real: Result) -> str:
    """Shows of every model what is shared, what is the same, and the host time of a step."""
    shallow, single = _by_model(host), _by_model(exact)
    deep = dict(shallow)
    for result in real:
        deep.update(_by_model(result))
    columns = ("<model", "layers", "regions", "templates", "at 2 layers", "bitwise, bfloat16")
    rows = (_model_row(deep[name], shallow.get(name), single[name]) for name in deep)
    return make_table((*columns, "float32, 2 layers", "host time to Thunder's"), rows)


def _model_row(deep: Point, shallow: Point | None, single: Point) -> list[str]:
    counts = [str(deep["layers"]), str(deep["regions"]), str(deep["templates"])]
    templates = str(shallow["templates"]) if shallow else ""
    same = [f"{point['bitwise']} of {point['tensors']}" for point in (deep, single)]
    return [deep["model"], *counts, templates, *same, f"{shallow['host']['ratio']:.2f}" if shallow else "not run"]


def _by_model(result: Result) -> dict[str, Point]:
    return {point["model"]: point for point in result["points"] if "tensors" in point}


def tabulate_thunder_suite(result: Result) -> str:
    """Shows Thunder's own tests, file by file."""
    rows = [*result["files"].items(), ("all", result["total"])]
    columns = ("<tests of Thunder", "run", "passed without", "passed with", "regions", "hits", "bypasses")
    return make_table(columns, (_suite_row(name, row) for name, row in rows))


def _suite_row(name: str, row: Point) -> list[str]:
    counts = [row["tests"], *row["passed"], row["regions"], row["hits"], row["bypasses"]]
    return [name.removeprefix("test_").removesuffix(".py"), *map(str, counts)]
