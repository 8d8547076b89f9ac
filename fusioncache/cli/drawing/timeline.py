"""Collectives as bars on a line of calls, with the bytes in flight and alive below, as SVG."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _LANE, _CURVE, _GAP = 1000.0, 9.0, 90.0, 14.0
_MOST_LANES = 24


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that lasts from one step to another.

    Attributes:
        start: a step, from 0.
        end: a later step.
        size: its weight in the curve of bars, such as bytes.
        kind: the class of its element.
        title: what is shown where it is pointed at.
    """

    start: int
    end: int
    size: int
    kind: str
    title: str


def draw_timeline(bars: Sequence[Bar], levels: Sequence[int], title: str) -> str:
    """Returns bars and curves as SVG, without style. It is the same for the same bars. Every text in it is escaped.

    Args:
        bars: in the order in which they start.
        levels: a number for each step, drawn as a line over the sum of the bars' sizes.
        title: what it shows.
    """
    steps = max(1, len(levels))
    lanes = _choose_lanes(bars)
    top = (max(lanes, default=0) + 1) * _LANE + _GAP
    sums = sum_bars(bars, steps)
    most = max(*levels, *sums, 1)
    lines = [
        f'<svg class="timeline" role="img" aria-label="{escape(title)}" viewBox="0 0 {_WIDTH:.0f} {top + _CURVE:.0f}">',
        f"<title>{escape(title)}</title>",
        *(_draw_bar(bar, lane, steps) for bar, lane in zip(bars, lanes, strict=True)),
        f'<path class="flight" d="{_draw_curve(sums, top, most)}V{top + _CURVE:.1f}H0Z"/>',
        f'<path class="alive" d="{_draw_curve(levels, top, most)}"/>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def sum_bars(bars: Sequence[Bar], steps: int) -> tuple[int, ...]:
    """Returns for each step the sizes of all bars that have started by then and not ended."""
    changes = [0] * (steps + 1)
    for bar in bars:
        changes[bar.start] += bar.size
        changes[bar.end] -= bar.size
    return tuple(_add_up(changes[:steps]))


def _add_up(changes: Sequence[int]) -> Iterator[int]:
    now = 0
    for change in changes:
        now += change
        yield now


def _choose_lanes(bars: Sequence[Bar]) -> list[int]:
    """Returns a lane for each bar: the first one that is free. The last lane takes what finds none."""
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    lanes = []
    for bar in bars:
        while busy and busy[0][0] <= bar.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else min(len(busy), _MOST_LANES - 1)
        heapq.heappush(busy, (bar.end, lane))
        lanes.append(lane)
    return lanes


def _draw_bar(bar: Bar, lane: int, steps: int) -> str:
    start, end = (_WIDTH * step / steps for step in (bar.start, bar.end))
    place = f'x="{start:.1f}" y="{lane * _LANE:.1f}" width="{max(1.0, end - start):.1f}" height="{_LANE - 2:.0f}"'
    return f'<rect class="{escape(bar.kind)}" {place}><title>{escape(bar.title)}</title></rect>'


def _draw_curve(levels: Sequence[int], top: float, most: int) -> str:
    """Returns the path of a line that steps from level to level."""
    width = _WIDTH / max(1, len(levels))
    heights = [top + _CURVE * (1 - level / most) for level in levels]
    parts = [f"M0 {heights[0] if heights else top + _CURVE:.1f}"]
    for number, height in enumerate(heights):
        if not number or height != heights[number - 1]:
            parts.append(f"V{height:.1f}")
        parts.append(f"H{width * (number + 1):.1f}")
    return "".join(parts)
