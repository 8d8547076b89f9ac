"""Where the collectives of a run's traces are: timelines, bytes in flight and alive, and what each bound cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fusioncache.cli.drawing.timeline import Bar, draw_timeline
from fusioncache.humanize import escape_controls, format_bytes
from fusioncache.observe.record.placements import FlightRecord, PlacementRecord

MOST_ROWS = 200
"""How many collectives of a trace are listed."""


@dataclass(frozen=True, slots=True)
class PlacedTrace:
    """A trace with collectives.

    Attributes:
        record: what is known of it.
        starts: how many calls start its collectives.
        hidden: of how many something is computed between their start and their wait.
        rows: its collectives, the first ``MOST_ROWS`` of them.
        picture: its timeline as SVG.
    """

    record: PlacementRecord
    starts: int
    hidden: int
    rows: tuple[FlightRecord, ...]
    picture: str


def place_traces(placements: Iterable[PlacementRecord]) -> tuple[PlacedTrace, ...]:
    """Returns what a report says of these, in their order."""
    return tuple(_place(placement) for placement in placements)


def _place(placement: PlacementRecord) -> PlacedTrace:
    flights = placement.flights
    # What comes before the first one only names arguments, of which there are hundreds.
    first = flights[0].start if flights else 0
    bars = [Bar(one.start - first, one.end - first, one.size, one.kind, _describe(one)) for one in flights]
    title = f"{len(flights)} collectives of the {placement.trace} trace along {len(placement.calls)} calls"
    return PlacedTrace(
        placement,
        len({one.start for one in flights}),
        sum(one.beside > 0 for one in flights),
        flights[:MOST_ROWS],
        draw_timeline(bars, placement.alive[first:], title),
    )


def _describe(flight: FlightRecord) -> str:
    beside = f"{flight.beside} call{'' if flight.beside == 1 else 's'} beside it"
    text = f"{flight.name}: {format_bytes(flight.size)}, steps {flight.start} to {flight.end}, {beside}"
    return escape_controls(text)
