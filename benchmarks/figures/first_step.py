"""The tables of first steps beside each other, and of what their tracing and nvFuser's compiling consist of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.figures.markdown import format_seconds, make_table

Result = Mapping[str, Any]
Point = Mapping[str, Any]

_WAYS = {"own": "Thunder's own", "before": "at `174f39c`", "fast": "fusioncache", "torch.compile": "torch.compile"}


def tabulate_depths(result: Result) -> str:
    """Shows the seconds of tracing by depth and by who traces, and what another layer takes."""
    found = {(point["tracing"], point["layers"]): point["seconds"] for point in result["points"] if "seconds" in point}
    depths = sorted({layers for _, layers in found})
    columns = [f"{layers} layers" for layers in depths]
    rows = []
    for way, name in _WAYS.items():
        seconds = {layers: found[way, layers]["trace"] for layers in depths if (way, layers) in found}
        if seconds:
            cells = (format_seconds(seconds.get(layers)) or "not run" for layers in depths)
            rows.append([name, *cells, _per_layer(seconds)])
    before, now = (found.get((way, depths[-1]), {}).get("trace") for way in ("before", "fast"))
    note = f"\nAt {depths[-1]} layers tracing takes {now / before:.2f} of what it took.\n" if before and now else ""
    return make_table(("<seconds of tracing", *columns, "another layer"), rows) + note


def _per_layer(seconds: Mapping[int, float]) -> str:
    """Returns the seconds that a layer adds between the two largest depths."""
    if len(seconds) < 2:
        return ""
    (few, less), (many, more) = sorted(seconds.items())[-2:]
    return f"{(more - less) / (many - few):.2f}"


def tabulate_phases(result: Result) -> str:
    """Shows the phases of today's tracing by depth."""
    points = [point for point in result["points"] if point["tracing"] == "fast" and "seconds" in point]
    names = [name for name in points[0]["seconds"] if name not in ("trace", "after_trace")]
    rows = ([name, *(format_seconds(point["seconds"][name]) for point in points)] for name in names)
    return make_table(("<seconds", *(f"{point['layers']} layers" for point in points)), rows)


def tabulate_jobs(*results: Result) -> str:
    """Shows the first step by how many other processes compile, and that of torch.compile."""
    points = [point for result in results for point in result["points"] if "seconds" in point]
    base = next((point["seconds"]["after_trace"] for point in points if point["jobs"] == 0), None)
    columns = ("<first step", "tracing", "behind it", "to no other process", "all")
    return make_table(columns, (_row_of_jobs(point, base) for point in points))


def _row_of_jobs(point: Point, base: float | None) -> list[str]:
    seconds, jobs = point["seconds"], point["jobs"]
    name = (
        _WAYS[point["tracing"]] if jobs is None else f"{jobs or 'no'} other {'process' if jobs == 1 else 'processes'}"
    )
    if jobs and point["start"] == "ready":
        name += ", there before"
    share = f"{seconds['after_trace'] / base:.2f}" if base and jobs is not None else ""
    behind = format_seconds(seconds["after_trace"])
    return [name, format_seconds(seconds["trace"]), behind, share, f"{format_seconds(seconds['total'])} s"]


def tabulate_stages(result: Result) -> str:
    """Shows where nvFuser's seconds for each template go, by its own trace."""
    traced = next(point["templates"] for point in result["points"] if point["variant"] == "trace")
    columns = ("<template", "operations", "kernels", "seconds", *_STAGES, "schedulers tried")
    return make_table(columns, (_row_of_stages(template) for template in traced))


_STAGES = ("which operations", "laid out", "CUDA generated", "that compiled")
_SEGMENT = "SegmentCandidateFinder::findSegments"
_KERNEL, _CODE, _NVRTC = "FusionKernelRuntime::compileKernel", "KernelExecutor::compile", "executor_utils::NVRTC"
_TRIED = "registry.cpp::checkCanSchedule<T>"


def _row_of_stages(template: Point) -> list[str]:
    def inside(name: str) -> float:
        return float(template["scopes"].get(name, {"seconds": 0.0})["seconds"])

    stages = [inside(_SEGMENT), inside(_KERNEL) - inside(_CODE), inside(_CODE) - inside(_NVRTC), inside(_NVRTC)]
    tried = template["scopes"].get(_TRIED, {"count": ""})["count"]  # short ones are not kept
    names = " ".join(template["names"][:3])
    counts = [str(template["operations"]), str(template["kernels"])]
    return [f"`{names}`", *counts, *map(format_seconds, (template["seconds"], *stages)), str(tried)]


def tabulate_variants(result: Result) -> str:
    """Shows what each way to compile takes to the first, and whether it computes and launches the same."""
    columns = ("<way", "<what differs", "seconds", "to the first", "other bits", "other CUDA")
    points = [point for point in result["points"] if "compared" in point]
    return make_table(columns, (_row_of_variant(point) for point in points))


def _row_of_variant(point: Point) -> list[str]:
    found = point["compared"]
    code = "" if found["other_code"] is None else str(found["other_code"])
    seconds = [format_seconds(found["seconds"]), f"{found['ratio']:.2f}"]
    return [point["variant"], point["meaning"], *seconds, str(found["other_bits"]), code]


def tabulate_detours(result: Result) -> str:
    """Shows what tracing takes more without each shortcut."""
    columns = ("<group", "<shortcut", "seconds", "of all", "calls", "of all")
    return make_table(columns, map(_row_of_detour, result["points"]))


def _row_of_detour(point: Point) -> list[str]:
    name = (
        f"`{point['name']}`" if point["name"] and point["group"] else "all of it" if point["group"] else "all of them"
    )
    cells = [f"{point['seconds']:.2f}", f"{point['seconds'] / point['all']['seconds']:.0%}"]
    return [point["group"], name, *cells, f"{point['calls']:.0f}", f"{point['calls'] / point['all']['calls']:.0%}"]
