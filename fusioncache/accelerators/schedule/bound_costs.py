"""What each bound of a schedule costs: what would start earlier without it, and how much would then be in flight."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fusioncache.accelerators.schedule.alive import measure_peaks
from fusioncache.accelerators.schedule.calls import COLLECTIVES, CallGraph, Kind
from fusioncache.accelerators.schedule.order import Bounds, Schedule, schedule_calls

_UNBOUNDED = sys.maxsize


@dataclass(frozen=True, slots=True)
class BoundCost:
    """What keeping to a bound costs.

    Attributes:
        name: of the bound, for people.
        bound: it, in bytes.
        most: the most bytes in flight that it is about.
        without: the same without this bound.
        delayed: how many collectives would start before more calls were computed without it.
    """

    name: str
    bound: int
    most: int
    without: int
    delayed: int


def measure_bounds(graph: CallGraph, schedule: Schedule, bounds: Bounds) -> tuple[BoundCost, ...]:
    """Returns what each bound on bytes in flight costs, of gathers and of reduces; nothing for what there is none of.

    A schedule without a bound is only looked for where the bound may have held something back. It takes n log n.

    Args:
        graph: the calls.
        schedule: the order that they have.
        bounds: what it was held to.
    """
    return tuple(_measure(graph, schedule, bounds))


def _measure(graph: CallGraph, schedule: Schedule, bounds: Bounds) -> Iterator[BoundCost]:
    peaks = measure_peaks(graph, schedule.order)
    for name, kind, bound, most, free in (
        ("gathers in flight", Kind.GATHER, bounds.gathering, peaks.gathering, replace(bounds, gathering=_UNBOUNDED)),
        ("reduces in flight", Kind.REDUCE, bounds.reducing, peaks.reducing, replace(bounds, reducing=_UNBOUNDED)),
    ):
        sizes = [graph.message_bytes(index) for index, call in enumerate(graph.calls) if call.kind is kind]
        if not sizes:
            continue
        if schedule.reason or most + max(max(sizes), bounds.batch) <= bound:
            yield BoundCost(name, bound, most, most, 0)
            continue
        other = schedule_calls(graph, free)
        found = measure_peaks(graph, other.order)
        ours, theirs = _find_starts(graph, schedule), _find_starts(graph, other)
        delayed = sum(theirs[index] < ours[index] for index in ours if graph.calls[index].kind is kind)
        yield BoundCost(name, bound, most, found.gathering if kind is Kind.GATHER else found.reducing, delayed)


def _find_starts(graph: CallGraph, schedule: Schedule) -> dict[int, int]:
    """Returns for each collective how many calls are computed before it starts."""
    computed = 0
    starts: dict[int, int] = {}
    for index in schedule.order:
        kind = graph.calls[index].kind
        if kind in COLLECTIVES:
            starts[index] = computed
        computed += kind in (Kind.COMPUTE, Kind.JOINED)
    return starts
