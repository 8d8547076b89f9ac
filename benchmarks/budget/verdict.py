"""Whether the current checkout is slower than the base, from pairs of seconds.

The ratio of a pair is current over base. The range of a figure's ratios is from their first to their third quartile; of
three or fewer it is from the least to the largest. ``slower`` is a figure whose median ratio is above 1 + tolerance and
whose range is above 1. ``unclear`` is one whose median ratio is above 1 + tolerance while its range includes 1, or of
fewer than three pairs: it needs more pairs. ``faster`` is the opposite of ``slower``; all else is ``ok``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

SLOWER, UNCLEAR, OK, FASTER, NOT_AVAILABLE = "slower", "unclear", "ok", "faster", "not available"

_FEW = 3
"""Pairs whose least and largest ratio are their range. Fewer have no verdict but ``UNCLEAR`` and ``OK``."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What pairs of one figure say.

    Attributes:
        current: the median of its seconds.
        base: the same of the base.
        ratio: the median of the pairs' ratios.
        low: where the range of these begins.
        high: where it ends.
        verdict: as above.
        ratios: of each pair, in order.
    """

    current: float
    base: float
    ratio: float
    low: float
    high: float
    verdict: str
    ratios: tuple[float, ...]


def compare(pairs: Sequence[tuple[float, float]], tolerance: float) -> Comparison:
    """Returns what pairs of seconds say.

    Args:
        pairs: of the current checkout and of the base, one or more.
        tolerance: by how much the median ratio may be above 1.
    """
    current, base = zip(*pairs, strict=True)
    ratios = tuple(ours / theirs for ours, theirs in pairs)
    ratio, (low, high) = median(ratios), _find_range(ratios)
    verdict = _judge(ratio, low, high, tolerance)
    if verdict != OK and len(pairs) < _FEW:
        verdict = UNCLEAR if ratio > 1 else OK
    return Comparison(median(current), median(base), ratio, low, high, verdict, ratios)


def _find_range(ratios: Sequence[float]) -> tuple[float, float]:
    if len(ratios) <= _FEW:
        return min(ratios), max(ratios)
    low, _, high = quantiles(ratios)
    return low, high


def _judge(ratio: float, low: float, high: float, tolerance: float) -> str:
    if ratio > 1 + tolerance:
        return SLOWER if low > 1 else UNCLEAR
    return FASTER if ratio < 1 / (1 + tolerance) and high < 1 else OK
