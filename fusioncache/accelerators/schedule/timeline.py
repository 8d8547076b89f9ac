"""Shows an order as a timeline: when each collective is under way, the bytes alive, and what each bound costs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fusioncache.accelerators.schedule.calls import (
    COLLECTIVES,
    CallGraph,
    Kind,
    Peaks,
    find_makers,
    find_waits,
    list_alive,
    measure_peaks,
)
from fusioncache.accelerators.schedule.order import Bounds, Schedule, schedule_calls
from fusioncache.humanize import format_bytes


@dataclass(frozen=True, slots=True)
class Flight:
    """A collective on its way. Steps are counted from 0.

    Attributes:
        kind: a gather or a reduce.
        name: what people call it.
        size: the bytes that it moves.
        start: the step that starts it, perhaps with others.
        end: the step that waits for it.
        beside: how many calls compute between the two.
    """

    kind: Kind
    name: str
    size: int
    start: int
    end: int
    beside: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happens step by step.

    Attributes:
        calls: the name of the call of each step; of collectives that travel together, of the first one.
        alive: the bytes of what travels that are alive during each step, at most.
        flights: the collectives, in the order in which they start.
    """

    calls: tuple[str, ...]
    alive: tuple[int, ...]
    flights: tuple[Flight, ...]


def make_timeline(graph: CallGraph, schedule: Schedule) -> Timeline:
    """Returns the timeline of calls in this order. Linear in the calls and what they take and give.

    Raises:
        Declined: if the calls are not understood.
    """
    calls = graph.calls
    step_of = {index: number for number, step in enumerate(schedule.steps) for index in step}
    computed = [0]
    for step in schedule.steps:
        computed.append(computed[-1] + (calls[step[0]].kind is Kind.COMPUTE))
    flights = []
    for start, wait in find_waits(calls, find_makers(calls)).items():
        first, last = step_of[start], step_of[wait]
        name = calls[start].message.partition(" over ")[0] or calls[start].name
        beside = computed[last] - computed[first]
        flights.append(Flight(calls[start].kind, name, graph.message_bytes(start), first, last, beside))
    most = dict(zip(schedule.order, list_alive(graph, schedule.order), strict=True))
    return Timeline(
        tuple(calls[step[0]].name for step in schedule.steps),
        tuple(max(most[index] for index in step) for step in schedule.steps),
        tuple(sorted(flights, key=lambda flight: (flight.start, flight.end))),
    )


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

    def before(self) -> Peaks:
        """Returns the most bytes in flight and alive in the order given."""
        return measure_peaks(self.graph, range(len(self.graph.calls)))

    def after(self) -> Peaks:
        """Returns the most bytes in flight and alive now."""
        return measure_peaks(self.graph, self.schedule.order)

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
