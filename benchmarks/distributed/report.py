"""Tables of what was measured of shared training steps, and whether orders of collectives gave the same bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point
from benchmarks.distributed.spec import PEERS, describe_setting

_COLUMNS = (
    "<peer",
    "step, ms",
    "fastest",
    "slowest",
    "exposed",
    "NCCL",
    "idle",
    "gaps",
    "GiB",
    "first, s",
    "compiles",
    "loaded",
    "further, s",
)
_NONE = "none"


def print_points(points: Sequence[Point]) -> None:
    """Prints a table for each model and length, then what failed, and how bits compare."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        groups.setdefault((point["width"], describe_setting(point)), []).append(point)
    for (width, setting), members in groups.items():
        title = f"{width} Llama, {setting}; each rank has its own tokens"
        caption = "of the rank that has most of each; times of kernels in ms; compiles and loaded programs of each"
        rows = [_row(point) for point in members if "error" not in point]
        console().print(make_table(title, caption, _COLUMNS, rows, wrap=False))
    for point in points:
        if "error" in point:
            click.echo(f"{point['peer']}, {describe_setting(point)}: {point['error'].splitlines()[-1]}")
    for one in compare_bits(points):
        verdict = "the same bits" if one["equal"] else "other bits: error"
        click.echo(f"{one['peer']} and {one['other']}, {one['width']}, {one['setting']}: {verdict}")


def _row(point: Point) -> list[str]:
    ranks = point["ranks"]
    peak = None if ranks[0]["bytes_peak"] is None else max(rank["bytes_peak"] for rank in ranks) / 2**30
    microseconds = ("exposed", "communication", "idle")
    return [
        point["peer"],
        f"{max(rank['step_ms'] for rank in ranks):.1f}",
        f"{max(rank['fastest_ms'] for rank in ranks):.1f}",
        f"{max(rank['slowest_ms'] for rank in ranks):.1f}",
        *(_most(ranks, name, 1e-3) for name in microseconds),
        _most(ranks, "gaps", 1.0),
        _NONE if peak is None else f"{peak:.2f}",
        f"{max(rank['first_step'] for rank in ranks):.1f}",
        " ".join(str(rank["compiles"]) for rank in ranks),
        " ".join(str(rank.get("programs", {}).get("loaded", _NONE)) for rank in ranks),
        _list_further(ranks),
    ]


def _list_further(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Returns the seconds of the first step at each further length, those of the slower rank."""
    steps = zip(*(rank.get("further", ()) for rank in ranks), strict=True)
    return " ".join(f"{max(one['seconds'] for one in each):.2f}" for each in steps) or _NONE


def _most(ranks: Sequence[Mapping[str, Any]], name: str, scale: float) -> str:
    if any(rank["timeline"] is None for rank in ranks):
        return _NONE
    return f"{scale * max(rank['timeline'][name] for rank in ranks):.1f}"


def compare_bits(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Returns of each of fusioncache's peers whether all ranks had the bits of the same one in Thunder's order."""
    known = {
        (point["peer"], point["width"], describe_setting(point)): point for point in points if "error" not in point
    }
    compared = []
    for (name, width, setting), point in known.items():
        other = f"{name}-thunder-order"
        if other in PEERS and (other, width, setting) in known:
            equal = _bits(point) == _bits(known[other, width, setting])
            compared.append({"peer": name, "other": other, "width": width, "setting": setting, "equal": equal})
    return compared


def _bits(point: Point) -> list[Any]:
    return [(rank["loss_bits"], rank["gradient_bits"]) for rank in point["ranks"]]
