"""When calls can be made, and when they have to be, in terms of the calls that keep their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusioncache.accelerators.schedule.calls import COLLECTIVES, CallGraph
from fusioncache.accelerators.schedule.dependences import find_dependences, find_makers, find_waits
from fusioncache.accelerators.schedule.roles import find_movable


@dataclass(frozen=True, slots=True)
class Needs:
    """What is known of calls before they get an order. A stage is a place among the calls that keep theirs, from 0 on.

    Attributes:
        dependences: the calls that have to stay before each call.
        movable: of each call whether it moves.
        staged: the calls that keep their order.
        ready: of each call the stage behind which it can be made; -1 is before all stages.
        given: of each call the stage behind which it is in the order given.
        needed: of each call the stage for which it has to be made.
        waits: the wait of each collective.
        chained: of the collectives that depend on what others bring, with no call between that keeps its order, these
            others.
    """

    dependences: tuple[tuple[int, ...], ...]
    movable: tuple[bool, ...]
    staged: tuple[int, ...]
    ready: tuple[int, ...]
    given: tuple[int, ...]
    needed: tuple[int, ...]
    waits: dict[int, int]
    chained: dict[int, frozenset[int]]


def find_needs(graph: CallGraph) -> Needs:
    """Returns what is known of calls before they get an order. Linear in the calls and what they take and give.

    Raises:
        Declined: if the calls are not understood.
    """
    calls = graph.calls
    dependences, movable = find_dependences(calls), find_movable(calls)
    staged = tuple(index for index, moves in enumerate(movable) if not moves)
    given: list[int] = []
    stage = -1
    for moves in movable:
        stage += not moves
        given.append(stage)
    ready: list[int] = []
    for index, moves in enumerate(movable):
        ready.append(max((ready[one] for one in dependences[index]), default=-1) if moves else given[index])
    needed = _find_needed(dependences, movable, given, max(stage, 0))
    waits = dict(find_waits(calls, find_makers(calls)))
    chained = _find_chained(graph, dependences, movable)
    return Needs(dependences, movable, staged, tuple(ready), tuple(given), needed, waits, chained)


def _find_needed(
    dependences: Sequence[Sequence[int]], movable: Sequence[bool], given: Sequence[int], last: int
) -> tuple[int, ...]:
    needed = [last if moves else stage for moves, stage in zip(movable, given, strict=True)]
    for index in reversed(range(len(needed))):
        for one in dependences[index]:
            if movable[one]:
                needed[one] = min(needed[one], needed[index])
    return tuple(needed)


def _find_chained(
    graph: CallGraph, dependences: Sequence[Sequence[int]], movable: Sequence[bool]
) -> dict[int, frozenset[int]]:
    """Returns for each collective that needs them the last ones before it, if no call between keeps its order."""
    nothing = frozenset[int]()
    behind: list[frozenset[int]] = []
    chained = {}
    for index, before in enumerate(dependences):
        found = nothing.union(*(behind[one] for one in before)) if movable[index] else nothing
        if found and graph.calls[index].kind in COLLECTIVES:
            chained[index] = found
        behind.append(frozenset({index}) if graph.calls[index].kind in COLLECTIVES else found)
    return chained
