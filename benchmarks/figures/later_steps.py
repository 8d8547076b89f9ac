"""Tables of later steps and of generated tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from benchmarks.figures.markdown import make_table

Result = Mapping[str, Any]
Point = Mapping[str, Any]


def tabulate_times(*results: Result) -> str:
    """Shows milliseconds of a later step on the host, and of one step of many in a row, by setting and way."""
    points = [point for result in results for point in result["points"] if "error" not in point]
    ways = list(dict.fromkeys(point["way"] for point in points))
    settings: dict[str, dict[str, str]] = {}
    for point in points:
        times = (f"{point['milliseconds'][name]:.2f}" for name in ("step", "wall"))
        settings.setdefault(_name_setting(point), {})[point["way"]] = " / ".join(times)
    rows = ([setting, *(found.get(way, "") for way in ways)] for setting, found in settings.items())
    return make_table(("<host / wall, ms", *ways), rows)


def _name_setting(point: Point) -> str:
    tokens = "2 x 64" if point["tokens"] is None else f"1 x {point['tokens']}"
    return f"{point['mode']}, {point['width']}, {point['layers']} layers, {tokens} tokens"


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
