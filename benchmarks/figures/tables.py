"""Each table of the README, from the results that it shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.figures.numbers import seconds, times
from benchmarks.figures.readme import table

Result = Mapping[str, Any]


def residual(result: Result) -> str:
    """First step and compiles of the residual model, with and without fusioncache."""
    ours = ("layers", "regions", "compiles", "compile seconds", "first step")
    theirs = ("without fusioncache: compiles", "compile seconds", "first step", "")
    return table((*ours, *theirs), _residual_rows(by_mode(result["points"])))


def _residual_rows(points: Mapping[int, Mapping[str, Any]]) -> Iterator[list[str]]:
    for layers, modes in points.items():
        ours, plain = modes["cached"], modes.get("uncached")
        row = [str(layers), str(ours["regions"]), *_compiles(ours)]
        yield [*row, *(_compiles(plain) if plain else ["", "", "not run"]), _gain(ours, plain)]


def _compiles(point: Mapping[str, Any]) -> list[str]:
    spent = point["seconds"]
    return [str(point["compiles"]), seconds(spent["compile"]), f"{seconds(spent['first_step'])} s"]


def _gain(ours: Mapping[str, Any], plain: Mapping[str, Any] | None) -> str:
    return times(ours["seconds"]["first_step"], plain["seconds"]["first_step"] if plain else None)


def call_overhead(result: Result) -> str:
    """Host time of one call, and what is added to nvFuser's own."""
    columns = ("inputs", "nvFuser's own `execute`", "fusioncache", "Thunder's wrapper")
    return table(columns, map(_overhead_row, result["points"]))


def _overhead_row(point: Mapping[str, Any]) -> list[str]:
    spent, added = point["microseconds"], point["added"]
    cells = [f"{spent[name]:.1f} ({added[name]:+.1f})" for name in ("fusioncache", "thunder")]
    return [str(point["inputs"]), f"{spent['execute']:.1f}", *cells]


def by_mode(points: Any) -> dict[int, dict[str, Any]]:
    """Points by their layers, then by their mode."""
    found: dict[int, dict[str, Any]] = {}
    for point in points:
        found.setdefault(point["layers"], {})[point["mode"]] = point
    return found
