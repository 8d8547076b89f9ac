"""Tables of later steps: what each calls, and how long the slowest take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from benchmarks.figures.markdown import make_table

Result = Mapping[str, Any]
Point = Mapping[str, Any]

_COUNTS = ("python", "torch", "operations", "symbols")
_PARTS = ("forward", "backward", "step", "tenth", "wall")
_QUANTILES = ("median", "0.99", "0.999", "slowest")
_KERNELS = ("products", "attention", "nvFuser", "Triton", "copies and fills", "others of torch's")


def tabulate_calls(*results: Result) -> str:
    """Shows what a later step calls, by depth and way. Times of a machine that others used as well say nothing."""
    rows = (
        [str(point["layers"]), point["way"], *(str(point["counts"].get(name, "")) for name in _COUNTS)]
        for result in results
        for point in result["points"]
    )
    return make_table(("layers", "<way", *_COUNTS), rows)


def tabulate_times(*results: Result) -> str:
    """Shows milliseconds of a later step of ways that take turns in a process, and the medians of each process."""
    columns = ("<mode", "<width", "layers", "<tokens", "<way", *(f"{name}, ms" for name in _PARTS), "<each process, ms")
    points = (point for result in results for point in result["points"] if "error" not in point)
    return make_table(columns, (_list_times(point) for point in points))


def _list_times(point: Point) -> list[str]:
    times = [f"{point['milliseconds'][name]:.2f}" if name in point["milliseconds"] else "" for name in _PARTS]
    return [*_name_step(point), *times, ", ".join(f"{each['step']:.2f}" for each in point["processes"])]


def tabulate_alone(*results: Result) -> str:
    """Shows milliseconds of a step of ways that have a process each, and memory that torch reserves and allocates."""
    columns = (
        "<mode",
        "<width",
        "layers",
        "<tokens",
        "<way",
        "host, ms",
        "wall, ms",
        "reserved, MiB",
        "allocated, MiB",
    )
    points = (point for result in results for point in result["points"] if "error" not in point)
    return make_table(columns, (_list_alone(point) for point in points))


def _list_alone(point: Point) -> list[str]:
    times = [f"{point['milliseconds'][name]:.2f}" for name in ("step", "wall")]
    return [*_name_step(point), *times, *(f"{point[name] / 2**20:.0f}" for name in ("reserved_bytes", "peak_bytes"))]


def _name_step(point: Point) -> list[str]:
    tokens = "2 x 64" if point["tokens"] is None else f"1 x {point['tokens']}"
    return [point["mode"], point["width"], str(point["layers"]), tokens, point["way"]]


def tabulate_kernels(*results: Result) -> str:
    """Shows milliseconds of a step on the host, of one of many, and of a GPU, also by who made the kernels."""
    columns = (
        *("<mode", "<width", "layers", "<tokens", "<way"),
        *("host, ms", "wall, ms", "GPU, ms"),
        *_KERNELS,
    )
    points = (point for result in results for point in result["points"] if "error" not in point)
    return make_table(columns, (_list_kernels(point) for point in points))


def _list_kernels(point: Point) -> list[str]:
    milliseconds = {name: kernels["milliseconds"] for name, kernels in point["kernels"].items()}
    return [
        *_name_step(point),
        *(f"{point['milliseconds'][name]:.2f}" for name in ("step", "wall")),
        f"{sum(milliseconds.values()):.2f}",
        *(f"{milliseconds.get(name, 0.0):.2f}" for name in _KERNELS),
    ]


def tabulate_launches(*results: Result) -> str:
    """Shows how many kernels, copies and fills a step launches, by who made them."""
    columns = ("<mode", "<width", "layers", "<tokens", "<way", "launches", *_KERNELS)
    points = (point for result in results for point in result["points"] if "error" not in point)
    return make_table(columns, (_list_launches(point) for point in points))


def _list_launches(point: Point) -> list[str]:
    launches = {name: round(kernels["kernels"]) for name, kernels in point["kernels"].items()}
    return [*_name_step(point), str(sum(launches.values())), *(str(launches.get(name, 0)) for name in _KERNELS)]


def tabulate_jitter(*results: Result) -> str:
    """Shows quantiles of later steps in milliseconds, by way and what ran beside it, and why the slowest were slow."""
    columns = ("<way", "<beside", "steps", *(f"{name}, ms" for name in _QUANTILES), "<causes of the slowest thousandth")
    return make_table(columns, (row for result in results for row in _list_jitter(result["points"])))


def _list_jitter(points: list[Point]) -> Iterator[list[str]]:
    for point in points:
        times = [f"{point['milliseconds'][name]:.2f}" for name in _QUANTILES]
        causes = ", ".join(f"{cause} ({count})" for cause, count in sorted(point["causes"].items()))
        yield [point["way"], point["beside"], str(point["steps"]), *times, causes]


def tabulate_inference(*results: Result) -> str:
    """Shows what generating text takes: first tokens by prompt, later ones, and what was compiled for them.

    Tokens a second are the median of those behind each prompt.
    """
    columns = (
        "<model",
        "<way",
        *("first token, s", "second prompt, s", "third, s", "later, ms"),
        *("tokens/s", "host, ms", "compiles", "traces", "error"),
    )
    return make_table(columns, (row for result in results for row in _list_inference(result)))


def _list_inference(result: Result) -> Iterator[list[str]]:
    options = result["environment"]["options"]
    for point in result["points"]:
        prompts, later = point["prompts"], point["later"]
        seconds = [f"{prompt['first']:.2f}" for prompt in prompts[:3]]
        behind = [str(sum(prompt[name] for prompt in prompts[2:])) for name in ("compiles", "traces")]
        yield [
            f"{options['width']}, {options['layers']} layers",
            point["way"],
            *seconds,
            f"{1000 * later[0]['first']:.1f}",
            f"{median(each['tokens_per_second'] for each in later):.0f}",
            f"{point['host_ms']:.2f}",
            *behind,
            f"{point['error']:.1e}",
        ]
