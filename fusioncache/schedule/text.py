"""A schedule as text for people: a line for each step, with the bytes in flight."""

from __future__ import annotations

from collections.abc import Iterator

from fusioncache.schedule.calls import COLLECTIVES, CallGraph, Kind
from fusioncache.schedule.dependences import find_makers
from fusioncache.schedule.order import Schedule


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
