"""Tables of first steps, in processes with empty caches and in processes with the caches of earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks.figures.markdown import format_seconds, make_table

Result = Mapping[str, Any]
Point = Mapping[str, Any]

_PROCESSES = ("cold", "warm")


def _index(points: Iterable[Point], *names: str) -> dict[Any, Point]:
    """Returns the points that have a result, by their values of these fields."""
    found = {tuple(point.get(name) for name in names): point for point in points if point.get("seconds")}
    return {key if len(names) > 1 else key[0]: point for key, point in found.items()}


def _format(point: Point | None, *, missing: str = "not measured") -> str:
    return f"{format_seconds(point['seconds']['total'])} s" if point else missing


def compare_starts(processes: Result) -> str:
    """Returns the README's table: seconds of the first step in two processes.

    Args:
        processes: a result of ``benchmarks/starts``, for one model and depth.
    """
    found = _index(processes["points"], "way", "process")
    ways = ("thunder", "torch.compile", "fusioncache")
    model = f"Llama-2-7b, {processes['points'][0]['layers']} layers"
    rows = [[f"{model}: first process", *(_format(found.get((way, "cold"))) for way in ways)]]
    # Plain Thunder stores nothing, so that each of its processes is a first one.
    rows.append([f"{model}: second process", "the same", *(_format(found.get((way, "warm"))) for way in ways[1:])])
    columns = (f"<first step, {processes['environment']['gpu']}", "plain Thunder", "`torch.compile`", "fusioncache")
    return make_table(columns, rows)


_PARTS = ("key", "reads", "load", "build", "guards", "kernels")


def tabulate_parts(*results: Result) -> str:
    """Returns a table of the parts of first steps, of cold and of second processes, by way."""
    columns = ("<model", "<way", "<process", "first step", "tracing", *_PARTS, "rest", "traces")
    rows = []
    for result in results:
        options = result["environment"]["options"]
        for point in result["points"]:
            size = "Llama-2-7b" if options["width"] == "real" else f"narrow {point['model']}"
            if not point.get("error", "").startswith("not run"):
                rows.append([f"{size}, {point['layers']} layers", point["way"], point["process"], *_list_parts(point)])
    return make_table(columns, rows)


def _list_parts(point: Point) -> list[str]:
    if "seconds" not in point:
        return ["failed", *[""] * (len(_PARTS) + 3)]
    seconds, first = point["seconds"], point["repeats"][0]
    parts = [f"{1e3 * seconds[part]:.0f} ms" if seconds.get(part) else "" for part in _PARTS]
    rest = seconds["rest"] + seconds.get("compile", 0.0)
    times = [f"{format_seconds(seconds['total'])} s", f"{format_seconds(seconds['trace'])} s"]
    traces = str(first["counts"]["traces"]) if "counts" in first else ""
    return [*times, *parts, f"{format_seconds(rest)} s", traces]


def tabulate_cpu_starts(result: Result) -> str:
    """Returns a table of first and second starts in CPU seconds, with the ratio of the first to Thunder's."""
    points = result["points"]
    found = _index(points, "model", "way", "process")
    columns = ("<model", "<way", "first start", "of it others", "to Thunder's", "second start", "later step")
    rows = []
    for model, way in dict.fromkeys((point["model"], point["way"]) for point in points):
        first, second = (found.get((model, way, process)) for process in ("cold", "warm"))
        plain = found.get((model, "thunder", "cold")) or found.get((model, "thunder-plain", "cold"))
        if first is None or plain is None:
            rows.append([model, way, "failed", "", "", "", ""])
            continue
        times = [_format(first), f"{format_seconds(first['seconds']['children'])} s"]
        ratio = f"{first['seconds']['total'] / plain['seconds']['total']:.2f}"
        later = f"{1e3 * first['later']['step']:.2f} ms" if first.get("later") else ""
        rows.append([model, way, *times, ratio, _format(second, missing="the same"), later])
    return make_table(columns, rows)


_HUGGING_FACE = ("fusioncache", "split", "templates")


def tabulate_hugging_face(result: Result) -> str:
    """Returns a table of the CPU seconds of first steps through thunderfx, also without splitting and programs."""
    found = _index(result["points"], "model", "way", "process")
    columns = ("<model", "parts", "cut", "first", "cut", "second", "cut", "without programs")
    rows = []
    for model in dict.fromkeys(point["model"] for point in result["points"]):
        own, cut, without = _HUGGING_FACE
        wanted = [(own, "cold"), (cut, "cold"), (own, "warm"), (cut, "warm"), (without, "warm")]
        points = [found[model, *each] for each in wanted if (model, *each) in found]
        if len(points) < len(wanted):
            rows.append([model, "failed", *[""] * 6])
            continue
        parts = [str(point["counts"]["parts"]) for point in points[2:4]]
        rows.append([model, *parts, *map(_format, points)])
    return make_table(columns, rows)


def tabulate_peers(result: Result) -> str:
    """Returns a table of first and later steps of every way on the same work."""
    points = result["points"]
    found = _index(points, "way", "process")
    columns = ("<peer", "first step", "tracing", "compiling", "second process", "step", "host time")
    rows = []
    for way in dict.fromkeys(point["way"] for point in points):
        cold, warm = found[way, "cold"], found.get((way, "warm"))
        seconds, later, kernels = cold["seconds"], cold["later"], cold["counts"]["kernels"]
        spent = [_format(cold), format_seconds(seconds.get("trace", 0.0)), format_seconds(seconds.get("compile", 0.0))]
        steps = [f"{1e3 * later[name]:.1f} ms" for name in ("step", "host")]
        counts = [f"{later['peak'] / 2**30:.2f}", str(kernels or ""), "yes" if cold["correct"] else "no"]
        rows.append([way, *spent, _format(warm, missing="the same"), *steps, *counts])
    return make_table((*columns, "GiB", "kernels", "correct"), rows)


def tabulate_modes(*results: Result) -> str:
    """Returns a table of first steps and compilations with recompute by fusioncache, by nothing, and by Thunder."""
    ours = ("layers", "own recompute: compiles", "compile seconds", "first step", "fusioncache's share")
    theirs = ("no recompute: compiles", "compile seconds", "first step", "own to it", "step, own to it")
    foreign = ("Thunder's recompute, cached: first step", "uncached: first step", "to own")
    points = (point for result in results for point in result["points"] if point["process"] == "cold")
    found = _index(points, "way", "layers")
    rows = []
    for layers in sorted({layers for _, layers in found}):
        ways = ("own", "thunder-lru", "templates", "thunder")
        own, baseline, cached, uncached = (found.get((way, layers)) for way in ways)
        share = f"{100 * own['counts']['canonicalize_seconds'] / own['seconds']['total']:.1f}%" if own else ""
        ratios = [_divide(own, baseline, _read_total), _divide(own, baseline, _read_step)]
        others = [
            _format(cached, missing="not run"),
            _format(uncached, missing="not run"),
            _divide(uncached, own, _read_total),
        ]
        rows.append([str(layers), *_list_compiles(own), share, *_list_compiles(baseline), *ratios, *others])
    return make_table((*ours, *theirs, *foreign), rows)


def _list_compiles(point: Point | None) -> list[str]:
    """Returns the cells of a point: its compilations, their seconds, and its first step."""
    if point is None:
        return ["", "", "not run"]
    return [str(point["counts"]["compiles"]), format_seconds(point["seconds"]["compile"]), _format(point)]


def _read_total(point: Point) -> float | None:
    total: float = point["seconds"]["total"]
    return total


def _read_step(point: Point) -> float | None:
    return point["later"]["step"] if point.get("later") else None


def _divide(one: Point | None, other: Point | None, read: Callable[[Point], float | None]) -> str:
    values = [read(point) if point else None for point in (one, other)]
    return "" if values[0] is None or not values[1] else f"{values[0] / values[1]:.2f}"
