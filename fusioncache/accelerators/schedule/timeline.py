"""Shows an order as a timeline: when each collective is under way, the bytes alive, and what each bound costs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fusioncache.accelerators.schedule.calls import (
    COLLECTIVES,
    CallGraph,
    Kind,
    find_makers,
    find_waits,
    list_alive,
    measure_peaks,
)
from fusioncache.accelerators.schedule.order import Bounds, Schedule, schedule_calls
from fusioncache.humanize import format_bytes
from fusioncache.observe.record.observations import BoundRecord, FlightRecord, PeakRecord, PlacementRecord


def _list_flights(graph: CallGraph, schedule: Schedule) -> Iterator[FlightRecord]:
    """Yields the collectives on their way, in the order in which they start. Steps are counted from 0."""
    calls = graph.calls
    step_of = {index: number for number, step in enumerate(schedule.steps) for index in step}
    computed = [0]
    for step in schedule.steps:
        computed.append(computed[-1] + (calls[step[0]].kind is Kind.COMPUTE))
    waits = find_waits(calls, find_makers(calls))
    for start, wait in sorted(waits.items(), key=lambda pair: (step_of[pair[0]], step_of[pair[1]])):
        first, last = step_of[start], step_of[wait]
        name = calls[start].message.partition(" over ")[0] or calls[start].name
        beside = computed[last] - computed[first]
        yield FlightRecord(str(calls[start].kind), name, graph.message_bytes(start), first, last, beside)


_UNBOUNDED = sys.maxsize


def _measure_bounds(graph: CallGraph, schedule: Schedule, bounds: Bounds) -> Iterator[BoundRecord]:
    """Yields what each bound on bytes in flight costs, of gathers and of reduces; nothing for what there is none of.

    A schedule without a bound is only looked for where the bound may have held something back. It takes n log n.

    Args:
        graph: the calls.
        schedule: the order that they have.
        bounds: what it was held to.
    """
    peaks = measure_peaks(graph, schedule.order)
    for name, kind, bound, most, free in (
        ("gathers in flight", Kind.GATHER, bounds.gathering, peaks.gathering, replace(bounds, gathering=_UNBOUNDED)),
        ("reduces in flight", Kind.REDUCE, bounds.reducing, peaks.reducing, replace(bounds, reducing=_UNBOUNDED)),
    ):
        sizes = [graph.message_bytes(index) for index, call in enumerate(graph.calls) if call.kind is kind]
        if not sizes:
            continue
        if schedule.reason or most + max(max(sizes), bounds.batch) <= bound:
            yield BoundRecord(name, bound, most, most, 0)
            continue
        other = schedule_calls(graph, free)
        found = measure_peaks(graph, other.order)
        ours, theirs = _find_starts(graph, schedule), _find_starts(graph, other)
        delayed = sum(theirs[index] < ours[index] for index in ours if graph.calls[index].kind is kind)
        yield BoundRecord(name, bound, most, found.gathering if kind is Kind.GATHER else found.reducing, delayed)


def _find_starts(graph: CallGraph, schedule: Schedule) -> dict[int, int]:
    """Returns for each collective how many calls are computed before it starts."""
    computed = 0
    starts: dict[int, int] = {}
    for index in schedule.order:
        kind = graph.calls[index].kind
        if kind in COLLECTIVES:
            starts[index] = computed
        computed += kind is Kind.COMPUTE
    return starts


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the collectives of a trace are now. As text it is a line.

    Attributes:
        graph: the calls in the order that was given.
        schedule: the order that they have now.
        bounds: what this had to keep to.
    """

    graph: CallGraph
    schedule: Schedule
    bounds: Bounds

    @property
    def left(self) -> str:
        """The reason why the order given stays; empty where it does not."""
        return self.schedule.reason

    @property
    def collectives(self) -> int:
        """How many collectives there are."""
        return sum(call.kind in COLLECTIVES for call in self.graph.calls)

    @property
    def starts(self) -> int:
        """How many calls start these."""
        return sum(self.graph.calls[step[0]].kind in COLLECTIVES for step in self.schedule.steps)

    def before(self) -> PeakRecord:
        """Returns the most bytes in flight and alive in the order given."""
        return measure_peaks(self.graph, range(len(self.graph.calls)))

    def after(self) -> PeakRecord:
        """Returns the most bytes in flight and alive now."""
        return measure_peaks(self.graph, self.schedule.order)

    def describe(self) -> PlacementRecord:
        """Returns what goes on record of this, without what says of which trace it is.

        The name of a step's call is that of its first one, if collectives travel together.

        Raises:
            Declined: if the calls are not understood.
        """
        steps = self.schedule.steps
        alive = dict(zip(self.schedule.order, list_alive(self.graph, self.schedule.order), strict=True))
        return PlacementRecord(
            model=None,
            trace="forward",
            trace_number=0,
            reason=self.left,
            calls=tuple(self.graph.calls[step[0]].name for step in steps),
            alive=tuple(max(alive[index] for index in step) for step in steps),
            flights=tuple(_list_flights(self.graph, self.schedule)),
            before=self.before(),
            after=self.after(),
            bounds=tuple(_measure_bounds(self.graph, self.schedule, self.bounds)),
        )

    def timeline(self) -> str:
        """Returns a line for each call, with the bytes in flight after those that start or end collectives."""
        return write_schedule(self.graph, self.schedule)

    def __str__(self) -> str:
        if self.left:
            return f"{self.collectives} collectives, as Thunder ordered them: {self.left}"
        before, after = self.before(), self.after()
        return (
            f"{self.collectives} collectives in {self.starts} calls: gathers in flight "
            f"{format_bytes(after.gathering)} at most ({format_bytes(before.gathering)} as Thunder ordered them), "
            f"reduces {format_bytes(after.reducing)} ({format_bytes(before.reducing)}), "
            f"what travels alive {format_bytes(after.alive)} ({format_bytes(before.alive)})"
        )


def write_schedule(graph: CallGraph, schedule: Schedule) -> str:
    """Returns a line for each step, and of steps that start or end collectives the bytes in flight after them."""
    return "\n".join(_write_steps(graph, schedule))


def _write_steps(graph: CallGraph, schedule: Schedule) -> Iterator[str]:
    makers = find_makers(graph.calls)
    in_flight = 0
    for step in schedule.steps:
        kind = graph.calls[step[0]].kind
        if kind in COLLECTIVES:
            in_flight += sum(graph.message_bytes(index) for index in step)
        elif kind is Kind.WAIT:
            in_flight -= graph.message_bytes(makers[graph.calls[step[0]].takes[0]])
        line = f"{kind:<8} " + " + ".join(_write_call(graph, index) for index in step)
        yield f"{line:<49} # {in_flight} B in flight" if kind in COLLECTIVES or kind is Kind.WAIT else line


def _write_call(graph: CallGraph, index: int) -> str:
    call = graph.calls[index]
    given = f"{', '.join(call.gives)} = " if call.gives else ""
    return f"{given}{call.name}({', '.join(call.takes)})"
