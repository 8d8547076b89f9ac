"""What the points of the scaling benchmark say about growth, and about modes against each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

Point = Mapping[str, Any]

PAIRS = (("uncached", "cached"), ("own", "cached"), ("own", "baseline"), ("uncached", "own"))
"""Which modes are divided by which."""
_DEEP = 8
"""What does not grow with the depth, such as compiling the first templates, hides the growth below."""


def summarize(points: Sequence[Point]) -> dict[str, Any]:
    """Returns figures by mode, and ratios of modes at each number of layers that both of them have.

    Returns:
        ``growth``: by mode the two ``deepest`` points, the ``ratio`` of their first steps, and the ``slope`` of the
        first step over the layers, both as logarithms, over all points from 8 layers on: 1 is linear, 2 quadratic.
        ``ratios``: under the names ``one/other`` one record for each number of layers.
    """
    measured = [point for point in points if "seconds" in point]
    by_mode: dict[str, dict[int, Point]] = {}
    for point in measured:
        by_mode.setdefault(point["mode"], {})[point["layers"]] = point
    return {
        "growth": {mode: _growth(of_mode) for mode, of_mode in by_mode.items() if len(of_mode) > 1},
        "ratios": {
            f"{one}/{other}": [
                {"layers": layers, **_ratios(by_mode[one][layers], by_mode[other][layers])}
                for layers in sorted(by_mode[one].keys() & by_mode[other].keys())
            ]
            for one, other in PAIRS
            if one in by_mode and other in by_mode
        },
    }


def fit_slope(layers: Sequence[float], seconds: Sequence[float]) -> float | None:
    """Returns the exponent of the power law that fits best, by least squares of logarithms.

    It is None for less than two points.
    """
    if len(layers) < 2:
        return None
    x, y = [log(value) for value in layers], [log(value) for value in seconds]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((value - middle_x) ** 2 for value in x)
    return sum((one - middle_x) * (other - middle_y) for one, other in zip(x, y, strict=True)) / spread


def _growth(points: Mapping[int, Point]) -> dict[str, Any]:
    seconds = {layers: points[layers]["seconds"]["first_step"] for layers in sorted(points)}
    before, last = list(seconds)[-2:]
    deep = [layers for layers in seconds if layers >= _DEEP]
    exponent = fit_slope(deep, [seconds[layers] for layers in deep])
    return {
        "deepest": [before, last],
        "ratio": _ratio(seconds[last], seconds[before]),
        "slope": None if exponent is None else round(exponent, 3),
    }


def _ratios(one: Point, other: Point) -> dict[str, float | None]:
    first = {name: _ratio(one["seconds"].get(name), other["seconds"].get(name)) for name in ("first_step", "compile")}
    steady, others = one.get("steady", {}), other.get("steady", {})
    return first | {name: _ratio(steady.get(name), others.get(name)) for name in ("forward", "backward", "peak")}


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else round(one / other, 4)
