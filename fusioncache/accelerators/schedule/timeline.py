"""An order of calls as a timeline: when each collective is under way, and how many bytes are alive during each call."""

from __future__ import annotations

from dataclasses import dataclass

from fusioncache.accelerators.schedule.alive import list_alive
from fusioncache.accelerators.schedule.calls import CallGraph, Kind
from fusioncache.accelerators.schedule.dependences import find_makers, find_waits
from fusioncache.accelerators.schedule.order import Schedule


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
        computed.append(computed[-1] + (calls[step[0]].kind in (Kind.COMPUTE, Kind.JOINED)))
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
