"""What an order of calls keeps alive and has in flight, in bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusioncache.accelerators.schedule.calls import CallGraph, Kind
from fusioncache.accelerators.schedule.dependences import find_makers, find_memory, find_waits
from fusioncache.accelerators.schedule.roles import find_movable


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most bytes that an order has at any time.

    Attributes:
        alive: of what travels: what collectives take and give, what is prepared for them, and views of it. Nothing else
            is counted. Whatever computing calls give each other lives as long in every order, and its size may differ
            from rank to rank, where the order must not.
        gathering: of gathers that were started and not waited for.
        reducing: of reduces that were started and not waited for.
    """

    alive: int
    gathering: int
    reducing: int


def measure_peaks(graph: CallGraph, order: Sequence[int]) -> Peaks:
    """Returns the peaks of calls in this order. What a collective takes is alive until its wait."""
    alive = max(list_alive(graph, order), default=0)
    return Peaks(alive, *(_peak_in_flight(graph, order, kind) for kind in (Kind.GATHER, Kind.REDUCE)))


def _peak_in_flight(graph: CallGraph, order: Sequence[int], kind: Kind) -> int:
    makers = find_makers(graph.calls)
    now = peak = 0
    for index in order:
        call = graph.calls[index]
        if call.kind is kind:
            now += graph.message_bytes(index)
        elif call.kind is Kind.WAIT and graph.calls[makers[call.takes[0]]].kind is kind:
            now -= graph.message_bytes(makers[call.takes[0]])
        peak = max(peak, now)
    return peak


def list_alive(graph: CallGraph, order: Sequence[int]) -> tuple[int, ...]:
    """Returns how many bytes of what travels are alive during each call, in this order of the calls."""
    calls, memory = graph.calls, find_memory(graph.calls)
    makers = find_makers(calls)
    starts = {wait: start for start, wait in find_waits(calls, makers).items()}
    travels = {
        memory[name]
        for call, moves in zip(calls, find_movable(calls), strict=True)
        if moves
        for name in (*call.takes, *call.gives)
    }
    owned = travels - {memory[name] for name in memory if name not in makers}
    # A view has no memory of its own. One that is expanded may have a size that differs from rank to rank.
    views = {name for call in calls if call.kind is Kind.VIEW for name in call.gives}
    size: dict[str, int] = {}
    for name, place in memory.items():
        size[place] = max(size.get(place, 0), 0 if name in views else graph.bytes_of(name))
    places = [_touched(graph, index, starts, memory) & owned for index in range(len(calls))]
    last = {place: step for step, index in enumerate(order) for place in places[index]}
    alive: set[str] = set()
    now, found = 0, []
    for step, index in enumerate(order):
        now += sum(size[place] for place in places[index] - alive)
        alive |= places[index]
        found.append(now)
        ended = {place for place in places[index] if last[place] == step}
        now -= sum(size[place] for place in ended)
        alive -= ended
    return tuple(found)


def _touched(graph: CallGraph, index: int, starts: Mapping[int, int], memory: Mapping[str, str]) -> set[str]:
    """Returns the memory that a call touches; a wait, also that of its collective."""
    touching = (index, starts[index]) if index in starts else (index,)
    calls = (graph.calls[one] for one in touching)
    return {memory[name] for call in calls for name in (*call.takes, *call.gives)}
