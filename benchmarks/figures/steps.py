"""Tables of steps: at many lengths, later steps, generation of tokens, and steps that devices share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.common.models import count_layers
from benchmarks.distributed.spec import describe_setting
from benchmarks.figures.markdown import format_seconds, make_table
from benchmarks.summary import list_rows

Result = Mapping[str, Any]
Point = Mapping[str, Any]


def tabulate_lengths(result: Result) -> str:
    """Returns a table of the waits of users at many lengths, in three processes of a series, by way."""
    return make_table(*list_rows(result["points"]))


def tabulate_buckets(*results: Result) -> str:
    """Returns a table of the seconds of steps with lengths rounded up to a multiple, and the lost seconds, by way."""
    rows = []
    for point in (point for result in results for point in result["points"] if "error" not in point):
        seconds = [step["seconds"] for step in point["steps"]]
        lengths = len({step["length"] for step in point["steps"]})
        lost = (f"{point['lost'][what]:.2f}" for what in ("new lengths", "padding"))
        rows.append([point["way"], str(point["multiple"]), str(lengths), f"{sum(seconds):.1f}", *lost])
    return make_table(
        ("<seconds", "multiple of", "lengths", "all steps", "lost to new lengths", "lost to padding"), rows
    )


_FIRST = 10
"""Number of first steps of experts whose compilations and traces are not counted."""


def tabulate_experts(result: Result) -> str:
    """Returns a table of experts' steps with changing routing, by way, and compilations and traces after the tenth."""
    rows = []
    for point in result["points"]:
        later = point["steps"][_FIRST:]
        seconds = [step["seconds"] for step in later]
        counts = [str(sum(step[name] for step in later)) for name in ("compiles", "traces")]
        times = [
            f"{point['steps'][0]['seconds']:.1f} s",
            f"{1e3 * median(seconds):.1f} ms",
            f"{1e3 * max(seconds):.0f} ms",
        ]
        rows.append([point["way"], *times, *counts])
    return make_table(("<peer", "first step", "median", "slowest", "compiles", "traces"), rows)


def tabulate_jobs(*results: Result) -> str:
    """Returns a table of the slowest rank's first step in a job and in one after it, by peer."""
    found: dict[str, dict[int, Point]] = {}
    for point in (point for result in results for point in result["points"] if "error" not in point):
        found.setdefault(point["peer"], {})[point["job"]] = point
    columns = ("<peer", "first job", "compiles of all ranks", "second job", "compiles", "programs loaded")
    return make_table(
        columns, [[peer, *_list_job(jobs.get(1)), *_list_later_job(jobs.get(2))] for peer, jobs in found.items()]
    )


def _list_job(point: Point | None) -> list[str]:
    if point is None:
        return ["not measured", ""]
    seconds = max(rank["first_step"] for rank in point["ranks"])
    return [f"{format_seconds(seconds)} s", str(sum(rank["compiles"] for rank in point["ranks"]))]


def _list_later_job(point: Point | None) -> list[str]:
    loaded = "" if point is None else ", ".join(str(rank["programs"].get("loaded", "")) for rank in point["ranks"])
    return [*_list_job(point), loaded.strip(", ")]


def tabulate_sequences(result: Result) -> str:
    """Returns a table of the slowest rank's steps if ranks share layers and sequences, by peer and length."""
    columns = ("<peer", "tokens", "step", "fastest", "slowest", "first step", "peak")
    rows = []
    for point in (point for point in result["points"] if "error" not in point):
        first = [{**rank, "seconds": rank["first_step"], "tokens": point["tokens"]} for rank in point["ranks"]]
        further = zip(*(rank["further"] for rank in point["ranks"]), strict=True)
        rows += [[point["peer"], *_list_sequence(each)] for each in (first, *further)]
    return make_table(columns, rows)


def _list_sequence(ranks: Sequence[Point]) -> list[str]:
    names = ("step_ms", "fastest_ms", "slowest_ms", "seconds", "bytes_peak")
    *times, first, peak = (max(rank[name] for rank in ranks) for name in names)
    steps = [f"{each:.1f} ms" for each in times]
    return [str(ranks[0]["tokens"]), *steps, f"{first:.1f} s", f"{peak / 2**30:.2f} GiB"]


def tabulate_orders(*results: Result) -> str:
    """Returns a table of shared steps in Thunder's order of collectives, fusioncache's, and torch.compile's if any."""
    columns = ("<model", "<shared by", "Thunder's order", "fusioncache", "torch.compile", "bytes at most")
    points = [point for result in results for point in result["points"] if "error" not in point]
    known = {(describe_setting(point), point["peer"]): point for point in points}
    rows = [
        [
            f"{count_layers(point['layers'])}, {point['tokens']} tokens",
            peer.removeprefix("fusioncache-"),
            *_compare_orders(setting, peer, known),
        ]
        for (setting, peer), point in known.items()
        if (setting, f"{peer}-thunder-order") in known
    ]
    return make_table(columns, rows)


def _compare_orders(setting: str, peer: str, known: Mapping[tuple[str, str], Point]) -> list[str]:
    sharing = peer.removeprefix("fusioncache-")
    others = [known.get((setting, f"{name}-compile")) for name in (f"fsdp2-{sharing}", sharing)]
    before, after = known[setting, f"{peer}-thunder-order"], known[setting, peer]
    peers = [before, after, *(other for other in others if other is not None)]
    peaks = [f"{max(rank['bytes_peak'] for rank in point['ranks']) / 2**30:.2f}" for point in peers]
    return [*([*map(_say_step, peers), ""][:3]), f"{', '.join(peaks)} GiB"]


def _say_step(point: Point) -> str:
    step = max(rank["step_ms"] for rank in point["ranks"])
    exposed = max(rank["timeline"]["exposed"] for rank in point["ranks"]) / 1e3
    return f"{step:.1f} ms ({exposed:.1f})"


def tabulate_times(*results: Result) -> str:
    """Returns a table of host milliseconds of a later step, and of wall time per step, by setting and way."""
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
    """Returns a table of text generation: times of first and later tokens, compilations and traces.

    Tokens per second are the median over the prompts.
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
            f"{point['distance']:.1e}",
        ]
