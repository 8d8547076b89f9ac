"""The README's table: what a user waits for, with plain Thunder, with torch.compile and with fusioncache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.figures.markdown import format_seconds, make_table

Result = Mapping[str, Any]
Point = Mapping[str, Any]

_COLUMNS = ("plain Thunder", "`torch.compile`", "fusioncache")
_PROCESS_WAYS = ("thunder", "torch.compile", "programs")
_LENGTH_WAYS = ("thunder", "torch.compile", "fusioncache")
_MISSING = "not measured"


def compare_starts(processes: Result, lengths: Result) -> str:
    """Shows the first step of two processes, and of new lengths, in seconds.

    Args:
        processes: of ``benchmarks/second_process.py``, for one model and depth.
        lengths: of ``benchmarks/lengths.py``, for a narrow model.
    """
    rows = [*_list_process_rows(processes), *_list_length_rows(lengths)]
    return make_table((f"<first step, {processes['environment']['gpu']}", *_COLUMNS), rows)


def _list_process_rows(processes: Result) -> Iterator[list[str]]:
    seconds = {
        (point["way"], point["process"]): point["seconds"] for point in processes["points"] if "seconds" in point
    }
    model = f"Llama-2-7b, {processes['points'][0]['layers']} layers"
    yield [f"{model}: first process", *(_say_total(seconds.get((way, "cold"))) for way in _PROCESS_WAYS)]
    # Plain Thunder stores nothing, so that each of its processes is a first one.
    second = ["the same", *(_say_total(seconds.get((way, "warm"))) for way in _PROCESS_WAYS[1:])]
    yield [f"{model}: second process", *second]


def _say_total(seconds: Mapping[str, float] | None) -> str:
    return f"{format_seconds(seconds['total'])} s" if seconds else _MISSING


def _list_length_rows(result: Result) -> Iterator[list[str]]:
    points = {point["way"]: point for point in result["points"] if "steps" in point}
    new = {way: list(_list_new_lengths(point["steps"])) for way, point in points.items()}
    layers = result["environment"]["options"]["layers"]
    model = f"narrow Llama, {layers} layers"
    yield [f"{model}: second length", *(_say(new.get(way, ())[1:2]) for way in _LENGTH_WAYS)]
    yield [f"{model}: each later length", *(_say(new.get(way, ())[2:]) for way in _LENGTH_WAYS)]


def _list_new_lengths(steps: Iterable[Point]) -> Iterator[float]:
    """Yields the seconds of each length's first step. A length of 1 is left out: it is specialized by all three."""
    known = {1}
    for step in steps:
        if step["length"] not in known:
            known.add(step["length"])
            yield step["seconds"]


def _say(seconds: Sequence[float]) -> str:
    return f"{format_seconds(median(seconds))} s" if seconds else _MISSING
