"""Each table of the README, from the results that it shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.choices import in_words
from benchmarks.figures.numbers import seconds, times
from benchmarks.figures.readme import table
from benchmarks.recompute_memory_report import bitwise, gibibytes
from benchmarks.scaling_summary import summary

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


def residual(result: Result) -> str:
    """First step and compiles of the residual model, with and without fusioncache."""
    ours = ("layers", "regions", "compiles", "compile seconds", "first step")
    theirs = ("without fusioncache: compiles", "compile seconds", "first step", "")
    return table((*ours, *theirs), _residual_rows(result["points"]))


def _residual_rows(points: list[Point]) -> Iterator[list[str]]:
    plain = {point["layers"]: point for point in points if point["mode"] == "uncached"}
    for ours in points:
        if ours["mode"] != "cached":
            continue
        theirs = plain.get(ours["layers"])
        row = [str(ours["layers"]), str(ours["regions"]), *_compiles(ours)]
        gain = times(ours["seconds"]["first_step"], theirs["seconds"]["first_step"]) if theirs else ""
        yield [*row, *(_compiles(theirs) if theirs else ["", "", "not run"]), gain]


def _compiles(point: Point) -> list[str]:
    spent = point["seconds"]
    return [str(point["compiles"]), seconds(spent["compile"]), f"{seconds(spent['first_step'])} s"]


def residual_modes(result: Result) -> str:
    """First step and compiles where fusioncache recomputes, where nothing does, and where Thunder is made to."""
    ours = ("layers", "own recompute: compiles", "compile seconds", "first step", "fusioncache's share")
    theirs = ("no recompute: compiles", "compile seconds", "first step", "own to it", "step, own to it")
    foreign = ("Thunder's recompute, cached: first step", "uncached: first step", "to own")
    return table((*ours, *theirs, *foreign), _residual_modes_rows(result["points"]))


def _residual_modes_rows(points: list[Point]) -> Iterator[list[str]]:
    measured = {(point["mode"], point["layers"]): point for point in points if "seconds" in point}
    for layers in sorted({layers for _, layers in measured}):
        own, baseline, cached, uncached = (
            measured.get((mode, layers)) for mode in ("own", "baseline", "cached", "uncached")
        )
        share = f"{100 * own['share']:.1f}%" if own else ""
        of_baseline = [_divided(own, baseline, *path) for path in (("seconds", "first_step"), ("steady", "step"))]
        foreign = [_first_step(cached), _first_step(uncached), _divided(uncached, own, "seconds", "first_step")]
        yield [str(layers), *_mode(own), share, *_mode(baseline), *of_baseline, *foreign]


def _mode(point: Point | None) -> list[str]:
    return _compiles(point) if point else ["", "", "not run"]


def _first_step(point: Point | None) -> str:
    return f"{seconds(point['seconds']['first_step'])} s" if point else "not run"


def _divided(one: Point | None, other: Point | None, group: str, name: str) -> str:
    if not one or not other or not one.get(group) or not other.get(group):
        return ""
    return f"{one[group][name] / other[group][name]:.2f}"


def residual_growth(result: Result) -> str:
    """How the first step of each mode grows with the depth."""
    growth = summary(result["points"])["growth"]
    rows = (
        [mode, f"{of['deepest'][0]} to {of['deepest'][1]}", f"{of['ratio']:.2f} x", _exponent(of["slope"])]
        for mode, of in growth.items()
    )
    return table(("<mode", "layers", "first step", "exponent, from 8 layers on"), rows)


def _exponent(slope: float | None) -> str:
    return "" if slope is None else f"{slope:.2f}"


def recompute_memory(*results: Result) -> str:
    """What each plan saves of the memory, and what it costs."""
    columns = ("<model", "layers", "<plan", "<chosen", "GiB saved for backward", "less", "peak, GiB", "less")
    points = [point for result in results for point in result["points"]]
    return table((*columns, "step", "to the reference's", "compiles", "bitwise"), map(_memory_row, points))


def _memory_row(point: Point) -> list[str]:
    if "error" in point:
        return [point["model"], "", point["name"], point["error"], *[""] * 8]
    steady, trade = point["steady"], point["against"] if point["plan"] != "reference" else None
    saved, peak = ([gibibytes(trade[name])] if trade else [""] for name in ("saved", "peak"))
    memory = [gibibytes(point["saved"]), *saved, gibibytes(steady["peak"]), *peak]
    step = [f"{1e3 * steady['step']:.1f} ms", f"{trade['step']:.3f}" if trade else ""]
    chosen = in_words(point["choices"])
    counts = [str(point["compiles"] + point["compiles_later"]), bitwise(point)]
    return [point["model"], str(point["layers"]), point["name"], chosen, *memory, *step, *counts]


def peers(result: Result) -> str:
    """First and later steps of every peer."""
    columns = ("<peer", "first step", "tracing", "compiling", "second process", "step", "host time")
    return table((*columns, "GiB", "kernels", "correct"), map(_peer_row, result["points"]))


def _peer_row(point: Point) -> list[str]:
    cold, warm = point["seconds"]["cold"], point["seconds"]["warm"]
    spent = [f"{seconds(cold['total'])} s", seconds(cold["trace"]), seconds(cold["compile"])]
    spent.append(f"{seconds(warm['total'])} s" if warm else "the same")
    later = [f"{point['step_ms']['median']:.1f} ms", f"{point['host_us']['median'] / 1000:.1f} ms"]
    counts = [f"{point['peak_bytes'] / 2**30:.2f}", str(point["kernels"] or "")]
    return [point["peer"], *spent, *later, *counts, "yes" if point["correct"] else str(point["error_of_wrong"])]


def first_step(result: Result) -> str:
    """The passes of a first step, with Thunder's own tracing and with the fast one."""
    points = result["points"]
    columns = [f"{point['layers']} layers, {point['tracing']}" for point in points]
    rows = ([name, *(seconds(point["seconds"][step]) for point in points)] for step, name in _STEPS.items())
    return table(("<seconds", *columns), rows)


def models(host: Result, exact: Result, *real: Result) -> str:
    """Every model: what is shared, what is the same, and the host time of a step."""
    shallow, single = _by_model(host), _by_model(exact)
    deep = dict(shallow)
    for result in real:
        deep.update(_by_model(result))
    columns = ("<model", "layers", "regions", "templates", "at 2 layers", "bitwise, bfloat16")
    rows = (_model_row(deep[name], shallow.get(name), single[name]) for name in deep)
    return table((*columns, "float32, 2 layers", "host time to Thunder's"), rows)


def _model_row(deep: Point, shallow: Point | None, single: Point) -> list[str]:
    counts = [str(deep["layers"]), str(deep["regions"]), str(deep["templates"])]
    templates = str(shallow["templates"]) if shallow else ""
    same = [f"{point['bitwise']} of {point['tensors']}" for point in (deep, single)]
    return [deep["model"], *counts, templates, *same, f"{shallow['host']['ratio']:.2f}" if shallow else "not run"]


def _by_model(result: Result) -> dict[str, Point]:
    return {point["model"]: point for point in result["points"] if "tensors" in point}


def thunder_suite(result: Result) -> str:
    """Thunder's own tests, file by file."""
    rows = [*result["files"].items(), ("all", result["total"])]
    columns = ("<tests of Thunder", "run", "passed without", "passed with", "regions", "hits", "bypasses")
    return table(columns, (_suite_row(name, row) for name, row in rows))


def _suite_row(name: str, row: Point) -> list[str]:
    counts = [row["tests"], *row["passed"], row["regions"], row["hits"], row["bypasses"]]
    return [name.removeprefix("test_").removesuffix(".py"), *map(str, counts)]
