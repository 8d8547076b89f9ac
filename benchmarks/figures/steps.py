"""Tables of training steps: at many lengths, and shared among devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import mean
from typing import Any

from benchmarks.common.spec import count_layers
from benchmarks.distributed.spec import describe_setting
from benchmarks.figures.markdown import format_seconds, make_table
from benchmarks.sequence_parallel.spec import PEERS

Result = Mapping[str, Any]
Point = Mapping[str, Any]

_FROM_THE_THIRD = 2


def tabulate_lengths(*results: Result) -> str:
    """Shows the first step of each length in its order, by way; further commits are named."""
    lengths = results[0]["environment"]["options"]["lengths"]
    counts = ("mean of the others", "compiles", "traces", "later step")
    return make_table(("<seconds", *map(str, lengths), *counts), _list_lengths(results, len(lengths)))


def _list_lengths(results: tuple[Result, ...], named: int) -> Iterator[list[str]]:
    first = results[0]["environment"]["commit"][:7]
    for result in results:
        commit = result["environment"]["commit"][:7]
        for point in result["points"]:
            seconds = [step["seconds"] for step in point["steps"]]
            counts = [
                str(sum(step[name] for step in point["steps"][_FROM_THE_THIRD:])) for name in ("compiles", "traces")
            ]
            later = mean(each["step_ms"] for each in point["later"])
            name = point["way"] if commit == first else f"{point['way']} at `{commit}`"
            others = f"{mean(seconds[named:]):.2f}"
            yield [name, *map(format_seconds, seconds[:named]), others, *counts, f"{later:.1f} ms"]


def tabulate_experts(result: Result) -> str:
    """Shows steps of experts with other routing in each, by peer, with what is compiled and traced behind the tenth."""
    columns = ("<peer", "first step", "median", "slowest", "compiles", "traces")
    rows = (
        [
            point["peer"],
            f"{point['first']:.1f} s",
            f"{1e3 * point['median']:.1f} ms",
            f"{1e3 * point['slowest']:.0f} ms",
            str(point["later_compiles"]),
            str(point["later_traces"]),
        ]
        for point in result["points"]
    )
    return make_table(columns, rows)


def tabulate_jobs(*results: Result) -> str:
    """Shows the first step of a job and of one after it, of the slowest rank, by the way that ranks share a model."""
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
    """Shows steps of a model whose layers and sequences ranks share, by peer and length; of the slower rank."""
    columns = ("<peer", "tokens", "step", "fastest", "slowest", "first step", "peak")
    rows = []
    for point in (point for point in result["points"] if "error" not in point and point["peer"] in PEERS):
        ranks = point["ranks"]
        times = [max(rank[name] for rank in ranks) for name in ("step_ms", "fastest_ms", "slowest_ms")]
        first, peak = (max(rank[name] for rank in ranks) for name in ("first_step", "bytes_peak"))
        steps = [f"{each:.1f} ms" for each in times]
        rows.append([point["peer"], str(point["length"]), *steps, f"{first:.1f} s", f"{peak / 2**30:.2f} GiB"])
    return make_table(columns, rows)


def tabulate_orders(*results: Result) -> str:
    """Shows steps of a shared model in Thunder's order of collectives, in ours, and by torch.compile where it ran."""
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
