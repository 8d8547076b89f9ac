"""The tables of where nvFuser's seconds go, and of what was tried to spare some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.common.nvfuser_trace import split_stages
from benchmarks.figures.markdown import format_seconds, make_table

Result = Mapping[str, Any]
Point = Mapping[str, Any]


def tabulate_stages(result: Result) -> str:
    """Shows where nvFuser's seconds for each template go, by its own trace."""
    traced = next(point["templates"] for point in result["points"] if point["variant"] == "trace")
    columns = ("<template", "operations", "kernels", "seconds", *_STAGES.values(), "schedulers tried")
    return make_table(columns, (_row_of_stages(template) for template in traced))


_STAGES = {
    "segment": "which operations",
    "schedule": "laid out",
    "lower": "CUDA generated",
    "nvrtc": "that compiled",
}
_TRIED = "registry.cpp::checkCanSchedule<T>"


def _row_of_stages(template: Point) -> list[str]:
    spent = split_stages({name: scope["seconds"] for name, scope in template["scopes"].items()})
    stages = [spent[stage] for stage in _STAGES]
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
