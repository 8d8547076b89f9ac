"""What a run leaves behind of the collectives of its traces: a timeline, bytes in flight and alive, costs of bounds.

As JSON, in which it is kept beside programs and in the record::

    placement = [ trace, reason, [ call ], [ alive ], [ [ kind, name, size, start, end, beside ] ],
                  peaks before, peaks after, [ [ name, bound, most, without, delayed ] ] ]
    peaks     = [ gathering, reducing, alive ]
"""

from __future__ import annotations

from dataclasses import astuple

from fusioncache.ir.strict_json import Value
from fusioncache.observe.record.observations import BoundRecord, FlightRecord, PeakRecord, PlacementRecord

_TRACES, _KINDS = frozenset({"forward", "backward"}), frozenset({"gather", "reduce"})


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
