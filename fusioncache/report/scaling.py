"""The scaling benchmark's result: what is in its JSON, and a log-log plot of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 720.0, 400.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 190.0, 16.0, 44.0
_SERIES = (("first_step", "first step"), ("compile", "compiling"))
_LABEL_HEIGHT = 15.0
_MARGIN = 0.15
"""Above and below the curves, in powers of ten."""
_MOST_DECADES = 2.5
"""With ticks between them."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement.

    Attributes:
        mode: how regions were compiled.
        layers: of the model.
        seconds: to the end of the first step, and of these compiling.
    """

    mode: str
    layers: int
    seconds: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Scaling:
    """A result.

    Attributes:
        title: what was measured, on what.
        points: by mode and depth.
    """

    title: str
    points: tuple[Point, ...]

    @property
    def modes(self) -> tuple[str, ...]:
        """In their order."""
        return tuple(dict.fromkeys(point.mode for point in self.points))


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of the plot.

    Attributes:
        label: what it shows.
        mode: the place of its mode among all.
        dashed: whether it is one of seconds compiling.
        points: x and y in the picture, with what each stands for.
        label_y: where the label goes, right of the plot.
    """

    label: str
    mode: int
    dashed: bool
    points: tuple[tuple[float, float, str], ...]
    label_y: float


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot in a picture of ``WIDTH`` by ``HEIGHT``.

    Attributes:
        curves: two for each mode.
        x_ticks: place and text of each.
        y_ticks: place and text of each.
        area: left, top, right and bottom end.
    """

    curves: tuple[Curve, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    area: tuple[float, float, float, float]


def read_scaling(text: str) -> Scaling:
    """What ``fusioncache bench --json`` wrote.

    Raises:
        ValueError: if it is something else, or has no point; the message says which.
    """
    try:
        result = json.loads(text)
        points = [_point(point) for point in result["points"] if "seconds" in point]
        title = _title(result["environment"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it is no result of 'fusioncache bench --json' ({type(error).__name__}: {error})") from error
    if not points:
        raise ValueError("none of its points has seconds")
    modes = list(dict.fromkeys(point.mode for point in points))
    return Scaling(title, tuple(sorted(points, key=lambda point: (modes.index(point.mode), point.layers))))


def plot(scaling: Scaling) -> Plot:
    """Where everything goes."""
    area = (_LEFT, _TOP, WIDTH - _RIGHT, HEIGHT - _BOTTOM)
    layers = sorted({point.layers for point in scaling.points})
    logs = [math.log10(_positive(seconds)) for point in scaling.points for seconds in point.seconds]
    low, high = min(logs) - _MARGIN, max(logs) + _MARGIN
    x = _axis(math.log2(layers[0]), math.log2(layers[-1]), area[0], area[2])
    y = _axis(low, high, area[3], area[1])

    def curve(mode: str, place: int, label: str) -> Curve:
        points = tuple(
            (
                _at(x, math.log2(point.layers)),
                _at(y, math.log10(_positive(point.seconds[place]))),
                f"{mode}, {label}: {point.layers} layers, {point.seconds[place]:.3g} s",
            )
            for point in scaling.points
            if point.mode == mode
        )
        return Curve(f"{mode}: {label}", scaling.modes.index(mode), place == 1, points, points[-1][1])

    curves = [curve(mode, place, label) for mode in scaling.modes for place, (_, label) in enumerate(_SERIES)]
    return Plot(
        _labelled(curves, area[3]),
        tuple((_at(x, math.log2(layer)), str(layer)) for layer in layers),
        tuple((_at(y, tick), f"{round(10**tick, 9):g}") for tick in _ticks(low, high)),
        area,
    )


def _point(point: Mapping[str, Any]) -> Point:
    layers, (first, compiling) = int(point["layers"]), (float(point["seconds"][name]) for name, _ in _SERIES)
    if layers < 1 or not (math.isfinite(first) and math.isfinite(compiling)):
        raise ValueError("a point that cannot be drawn")
    return Point(str(point["mode"]), layers, (first, compiling))


def _title(environment: Mapping[str, Any]) -> str:
    options = environment["options"]
    step = "forward and backward" if options["grad"] else "forward"
    recompute = "with" if options["recompute"] else "without"
    machine = environment["gpu"] or f"{environment['cpus']} CPUs"
    return f"{options['model']} {recompute} recompute, {step}, {options['backend']}, {machine}"


def _positive(seconds: float) -> float:
    """What a logarithm is taken of: nothing at all is a millisecond."""
    return max(seconds, 1e-3)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two logarithms: powers of ten, and where these are few, twice and five times them."""
    decades = range(math.floor(low), math.ceil(high) + 1)
    steps = (1, 2, 5) if high - low < _MOST_DECADES else (1,)
    ticks = [math.log10(step) + decade for decade in decades for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


_Axis = tuple[float, float, float, float]


def _axis(low: float, high: float, start: float, end: float) -> _Axis:
    # A single depth stands in the middle.
    return (low, high, start, end) if high > low else (low - 1, high + 1, start, end)


def _at(axis: _Axis, value: float) -> float:
    low, high, start, end = axis
    return round(start + (value - low) / (high - low) * (end - start), 1)


def _labelled(curves: Sequence[Curve], bottom: float) -> tuple[Curve, ...]:
    """The curves with their labels apart, each as near to the end of its line as the one above allows."""
    found, last = [], -math.inf
    for curve in sorted(curves, key=lambda curve: curve.label_y):
        last = max(curve.label_y, last + _LABEL_HEIGHT)
        found.append(Curve(curve.label, curve.mode, curve.dashed, curve.points, last))
    over = max(0.0, last - bottom)
    return tuple(Curve(c.label, c.mode, c.dashed, c.points, round(c.label_y - over, 1)) for c in found)
