"""What goes on record of where the collectives of a trace are."""

from __future__ import annotations

from fusioncache.accelerators.schedule.alive import Peaks
from fusioncache.accelerators.schedule.bound_costs import measure_bounds
from fusioncache.accelerators.schedule.placement import Placement
from fusioncache.accelerators.schedule.timeline import make_timeline
from fusioncache.observe.record.placements import BoundRecord, FlightRecord, PeakRecord, PlacementRecord


def describe_placement(placement: Placement) -> PlacementRecord:
    """Returns what goes on record of a placement, without what says of which trace it is.

    Raises:
        Declined: if its calls are not understood.
    """
    graph, schedule = placement.graph, placement.schedule
    timeline = make_timeline(graph, schedule)
    flights = (
        FlightRecord(str(one.kind), one.name, one.size, one.start, one.end, one.beside) for one in timeline.flights
    )
    bounds = (
        BoundRecord(one.name, one.bound, one.most, one.without, one.delayed)
        for one in measure_bounds(graph, schedule, placement.bounds)
    )
    return PlacementRecord(
        model=None,
        trace="forward",
        trace_number=0,
        reason=placement.left,
        calls=timeline.calls,
        alive=timeline.alive,
        flights=tuple(flights),
        before=_record_peaks(placement.before()),
        after=_record_peaks(placement.after()),
        bounds=tuple(bounds),
    )


def _record_peaks(peaks: Peaks) -> PeakRecord:
    return PeakRecord(peaks.gathering, peaks.reducing, peaks.alive)
