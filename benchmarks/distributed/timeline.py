"""What a device did, from when each of its kernels ran: how much communication had nothing beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.common.kernels import Kernel

_GAP = 20.0
"""Microseconds for which a device that does nothing is worth a count."""

Span = tuple[float, float]
"""From when to when."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """What a device did in a step, in microseconds.

    Attributes:
        communication: for how long any kernel communicated.
        exposed: for how long of that nothing else ran.
        computing: for how long anything else ran.
        copying: how long kernels took that only copy.
        idle: between the first kernel and the last one, for how long none ran.
        gaps: how often none ran for more than 20 microseconds.
        kernels: how many there were.
    """

    communication: float
    exposed: float
    computing: float
    copying: float
    idle: float
    gaps: float
    kernels: float


def read_timeline(kernels: Sequence[Kernel], steps: int) -> Timeline:
    """Returns what a device did in one step, from the kernels of several."""
    communication = unite((kernel.start, kernel.end) for kernel in kernels if kernel.communicates)
    computing = unite((kernel.start, kernel.end) for kernel in kernels if not kernel.communicates)
    anything = unite([*communication, *computing])
    idle = [after[0] - before[1] for before, after in pairwise(anything)]
    return Timeline(
        communication=length(communication) / steps,
        exposed=(length(anything) - length(computing)) / steps,
        computing=length(computing) / steps,
        copying=sum(kernel.end - kernel.start for kernel in kernels if kernel.copies) / steps,
        idle=sum(idle) / steps,
        gaps=sum(gap > _GAP for gap in idle) / steps,
        kernels=len(kernels) / steps,
    )


def unite(spans: Iterable[Span]) -> list[Span]:
    """Returns spans that do not touch and cover what these cover, in order."""
    united: list[Span] = []
    for start, end in sorted(spans):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((start, end))
    return united


def length(spans: Iterable[Span]) -> float:
    """Returns how long spans are together."""
    return sum(end - start for start, end in spans)
