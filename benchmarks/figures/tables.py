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


def list_compiles(point: Point) -> list[str]:
    """Returns the cells of a point's compiles, their seconds, and its first step."""
    spent = point["seconds"]
    return [str(point["compiles"]), format_seconds(spent["compile"]), f"{format_seconds(spent['first_step'])} s"]


def tabulate_peers(result: Result) -> str:
    """Shows first and later steps of every peer."""
    columns = ("<peer", "first step", "tracing", "compiling", "second process", "step", "host time")
    return make_table((*columns, "GiB", "kernels", "correct"), map(_peer_row, result["points"]))


def _peer_row(point: Point) -> list[str]:
    cold, warm = point["seconds"]["cold"], point["seconds"]["warm"]
    spent = [f"{format_seconds(cold['total'])} s", format_seconds(cold["trace"]), format_seconds(cold["compile"])]
    spent.append(f"{format_seconds(warm['total'])} s" if warm else "the same")
    later = [f"{point['step_ms']['median']:.1f} ms", f"{point['host_us']['median'] / 1000:.1f} ms"]
    counts = [f"{point['peak_bytes'] / 2**30:.2f}", str(point["kernels"] or "")]
    return [point["peer"], *spent, *later, *counts, "yes" if point["correct"] else str(point["error_of_wrong"])]


def tabulate_first_step(result: Result) -> str:
    """Shows the passes of a first step, with Thunder's own tracing and with the fast one."""
    points = result["points"]
    columns = [f"{point['layers']} layers, {point['tracing']}" for point in points]
    rows = ([name, *(format_seconds(point["seconds"][step]) for point in points)] for step, name in _STEPS.items())
    return make_table(("<seconds", *columns), rows)


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
