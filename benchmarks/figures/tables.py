"""Tables of models, memory, accelerators and saved seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.budget.spec import FIGURES
from benchmarks.figures.markdown import format_seconds, make_table
from benchmarks.memory import format_bitwise, format_gibibytes, name_plans

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


def tabulate_first_step(result: Result) -> str:
    """Returns a table of the passes of a first step, with Thunder's original tracing and with the fast one."""
    points = result["points"]
    columns = [f"{point['layers']} layers, {point['tracing']}" for point in points]
    rows = ([name, *(format_seconds(point["seconds"][step]) for point in points)] for step, name in _STEPS.items())
    return make_table(("<seconds", *columns), rows)


def tabulate_models(host: Result, exact: Result, *real: Result) -> str:
    """Returns a table of every model's regions, templates, tensors with the same bits, and host time of a step."""
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


def tabulate_memory(*results: Result) -> str:
    """Returns a table of the memory that each plan saves, and of its cost."""
    columns = ("<model", "layers", "<plan", "<chosen", "GiB saved for backward", "less", "peak, GiB", "less")
    points = [point for result in results for point in result["points"]]
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


def tabulate_prices(*results: Mapping[str, Any]) -> str:
    """Returns a table with a row for each accelerator, and its ratios from the result that measured it."""
    points: dict[str, dict[str, Any]] = {}
    for result in results:
        for point in result["points"]:
            if "ratios" in point or point["accelerator"] not in points:
                points[point["accelerator"]] = point
    measured = [name for name in FIGURES if any(name in point.get("ratios", ()) for point in points.values())]
    columns = ("<accelerator", "lines", "names of Thunder", *(FIGURES[name] for name in measured))
    return make_table(columns, [_price_row(point, measured) for point in points.values()])


def _price_row(point: Mapping[str, Any], measured: Sequence[str]) -> list[str]:
    ratios = point.get("ratios", {})
    cells = (_write_ratios(ratios[name]) if name in ratios else "" for name in measured)
    return [point["accelerator"], f"{point['lines']:,}", str(point["names"]), *cells]


def _write_ratios(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def tabulate_saved_seconds(result: Result) -> str:
    """Returns a table of the seconds that were reported as saved, and the real difference."""
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


def tabulate_fuzzing(result: Result) -> str:
    """Returns a table of the results of decoders on changed files."""
    columns = ("<kind of file", "inputs", "decoded", "refused", "crashed", "memory grew by")
    rows = (
        [
            *(str(point[name]) for name in ("kind", "inputs", "decoded", "refused")),
            *(str(sum(point["crashed"].values())), f"{point['grown_mb']:.1f} MB"),
        ]
        for point in result["points"]
    )
    return make_table(columns, rows)


def tabulate_remote(result: Result) -> str:
    """Returns a table of a remote's requests per host, the waits of processes for loads, and compilations per host."""
    columns = ("<server", "<package", "hosts", "uploaded by", "requests of a host", "MB of a host", "median", "99%")
    rows = (
        [
            *(point["faults"], point["way"], str(point["hosts"]), str(point["pushed"].get("hosts", 0))),
            f"{point['requests_per_host']:.1f}",
            f"{point['bytes'] / point['hosts'] / 1e6:.2f}",
            *(f"{format_seconds(point[name])} s" for name in ("median_seconds", "p99_seconds")),
            f"{point['compiled_per_host']:.1f}",
        ]
        for point in result["points"]
    )
    return make_table((*columns, "compiled by a host"), rows)
