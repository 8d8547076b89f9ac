"""What a run leaves behind of the collectives of its traces: a timeline, bytes in flight and alive, costs of bounds.

As JSON, in which it is kept beside programs and in the record::

    placement = [ trace, reason, [ call ], [ alive ], [ [ kind, name, size, start, end, beside ] ],
                  peaks before, peaks after, [ [ name, bound, most, without, delayed ] ] ]
    peaks     = [ gathering, reducing, alive ]
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from fusioncache.ir.strict_json import Value

_TRACES, _KINDS = frozenset({"forward", "backward"}), frozenset({"gather", "reduce"})


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """A collective on its way, from the step of the trace that starts it to the one that waits for it.

    Attributes:
        kind: ``gather`` or ``reduce``.
        name: what it is, with dtype and shape.
        size: the bytes that it moves.
        start: a step, from 0.
        end: a step.
        beside: how many calls compute between the two.
    """

    kind: str
    name: str
    size: int
    start: int
    end: int
    beside: int


@dataclass(frozen=True, slots=True)
class PeakRecord:
    """The most bytes that an order has at any time.

    Attributes:
        gathering: of gathers under way.
        reducing: of reduces under way.
        alive: of what travels.
    """

    gathering: int
    reducing: int
    alive: int


@dataclass(frozen=True, slots=True)
class BoundRecord:
    """What a bound costs.

    Attributes:
        name: of it.
        bound: bytes.
        most: bytes in flight that it is about, at most.
        without: the same without this bound.
        delayed: how many collectives would start earlier without it.
    """

    name: str
    bound: int
    most: int
    without: int
    delayed: int


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """Where the collectives of a trace are.

    Attributes:
        model: as that of a region.
        trace: as that of a region.
        trace_number: as that of a region.
        reason: why they are where Thunder put them; empty if they were moved.
        calls: the name of each step's call.
        alive: the bytes of what travels that are alive during each step.
        flights: the collectives, in the order in which they start.
        before: peaks of the order that Thunder made.
        after: peaks of this one.
        bounds: what was to be kept to.
    """

    model: str | None
    trace: str
    trace_number: int
    reason: str
    calls: tuple[str, ...]
    alive: tuple[int, ...]
    flights: tuple[FlightRecord, ...]
    before: PeakRecord
    after: PeakRecord
    bounds: tuple[BoundRecord, ...]


def list_placement(placement: PlacementRecord) -> list[object]:
    """Returns a placement as JSON has it, without its model and number."""
    return [
        placement.trace,
        placement.reason,
        list(placement.calls),
        list(placement.alive),
        [list(astuple(flight)) for flight in placement.flights],
        list(astuple(placement.before)),
        list(astuple(placement.after)),
        [list(astuple(bound)) for bound in placement.bounds],
    ]


def decode_placement(value: Value, model: str | None, trace_number: int) -> PlacementRecord:
    """Returns a placement that was listed.

    Args:
        value: it.
        model: that the program is for.
        trace_number: of its forward trace.

    Raises:
        ValueError: if it is none.
    """
    trace, reason, calls, alive, flights, before, after, bounds = value.items(8)
    if trace.text() not in _TRACES:
        raise trace.error("forward or backward")
    names = tuple(call.text() for call in calls.items())
    return PlacementRecord(
        model,
        trace.text(),
        trace_number,
        reason.text(),
        names,
        tuple(each.integer() for each in alive.items(len(names))),
        tuple(_decode_flight(each, len(names)) for each in flights.items()),
        PeakRecord(*(each.integer() for each in before.items(3))),
        PeakRecord(*(each.integer() for each in after.items(3))),
        tuple(_decode_bound(each) for each in bounds.items()),
    )


def _decode_flight(value: Value, steps: int) -> FlightRecord:
    kind, name, *numbers = value.items(6)
    if kind.text() not in _KINDS:
        raise kind.error("gather or reduce")
    flight = FlightRecord(kind.text(), name.text(), *(number.integer() for number in numbers))
    if not 0 <= flight.start < flight.end < steps:
        raise value.error("a way from one step to a later one")
    return flight


def _decode_bound(value: Value) -> BoundRecord:
    name, *numbers = value.items(5)
    return BoundRecord(name.text(), *(number.integer() for number in numbers))
