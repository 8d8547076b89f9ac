"""What became of the collectives of one trace, for people: in a line, and step by step with the bytes in flight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusioncache.accelerators.schedule.alive import Peaks, measure_peaks
from fusioncache.accelerators.schedule.calls import COLLECTIVES, CallGraph, Kind
from fusioncache.accelerators.schedule.dependences import find_makers
from fusioncache.accelerators.schedule.order import Bounds, Schedule
from fusioncache.humanize import format_bytes


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
