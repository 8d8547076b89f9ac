"""Decides from pairs of seconds whether the current checkout is slower than the base.

The ratio of a pair is current over base. The range of a figure's ratios is from their first to their third quartile; of
three or fewer it is from the least to the largest. A figure is ``slower`` if its median ratio is above 1 + tolerance
and its range is above 1. It is ``unclear``, and needs more pairs, if its median ratio is above 1 + tolerance and its
range includes 1, or if there are fewer than three pairs. ``faster`` is the opposite of ``slower``; all else is ``ok``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

SLOWER, UNCLEAR, OK, FASTER, NOT_AVAILABLE = "slower", "unclear", "ok", "faster", "not available"

_FEW = 3
"""Up to this number of pairs the range is from the least to the largest ratio. Fewer can only be unclear or ok."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of the pairs of one figure.

    Attributes:
        current: the median seconds of the current checkout.
        base: the median seconds of the base.
        ratio: the median of the pairs' ratios.
        low: the lower end of their range.
        high: the upper end of their range.
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
    """Returns the comparison of pairs of seconds.

    Args:
        pairs: seconds of the current checkout and of the base, one pair or more.
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
