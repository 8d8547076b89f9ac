"""The calls to be scheduled, and what bounds their order.

Calls compute, start a collective or wait for one. A call stays behind the makers of its values. From that follows when
a call can run, when it must run, and how many bytes an order keeps alive and in flight. No call writes into memory that
others read: see ``check_effects``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fusioncache.ir.errors import Declined, Scope
from fusioncache.observe.record.observations import PeakRecord


class Kind(StrEnum):
    """What a call is to a schedule."""

    COMPUTE = "compute"
    """Computes, or does anything else that is not one of the others."""
    VIEW = "view"
    """Gives another view of what it takes, and computes nothing."""
    GATHER = "gather"
    """Starts a collective that makes something larger of what each rank has."""
    REDUCE = "reduce"
    """Starts a collective that adds up what the ranks have."""
    WAIT = "wait"
    """Ends a collective: takes what that gave, and gives what may be used."""


COLLECTIVES = frozenset({Kind.GATHER, Kind.REDUCE})
"""What is moved, and what all ranks have to run in the same order."""


@dataclass(frozen=True, slots=True)
class CallNode:
    """One call. Values have names, and each is given by one call at most.

    Attributes:
        kind: what it is to a schedule.
        name: what people call it; for them only.
        takes: the values that it reads.
        gives: the values that it makes.
        fixed: whether it may not move although it seems to change nothing: it has an effect, or takes random numbers.
        channel: collectives of one channel may travel together; one that has none travels alone.
        message: tells of a collective what must be the same on every rank.
    """

    kind: Kind
    name: str
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    fixed: bool = False
    channel: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class CallGraph:
    """Calls in the order that is given, and how many bytes the values have that they make.

    What no call gives is an input: its memory is the caller's, and not counted. The last call that computes is what
    returns, or else the values without a consumer are not kept.

    Attributes:
        calls: in the order given, in which each value is given before it is taken.
        sizes: the bytes of values; one that is missing has none.
    """

    calls: tuple[CallNode, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)

    def bytes_of(self, *names: str) -> int:
        """Returns how many bytes these values have."""
        return sum(self.sizes.get(name, 0) for name in names)

    def message_bytes(self, index: int) -> int:
        """Returns how many bytes a collective moves: of what it takes or of what it gives, whichever is more."""
        call = self.calls[index]
        return max(self.bytes_of(*call.takes), self.bytes_of(*call.gives))


def find_makers(calls: Sequence[CallNode]) -> Mapping[str, int]:
    """Returns which call gives each value.

    Raises:
        Declined: if a value is given twice, or taken before it is given.
    """
    makers: dict[str, int] = {}
    inputs: set[str] = set()
    for index, call in enumerate(calls):
        inputs.update(name for name in call.takes if name not in makers)
        for name in call.gives:
            if name in makers or name in inputs:
                raise Declined("a value is defined twice, or too late", Scope.ORDER)
            makers[name] = index
    return makers


def find_waits(calls: Sequence[CallNode], makers: Mapping[str, int]) -> Mapping[int, int]:
    """Returns the wait of each collective.

    Raises:
        Declined: if a collective has not exactly one wait, or something else takes what only a wait may take.
    """
    waits: dict[int, int] = {}
    for index, call in enumerate(calls):
        for name in call.takes:
            maker = makers.get(name)
            if maker is None or calls[maker].kind not in COLLECTIVES:
                continue
            if call.kind is not Kind.WAIT or maker in waits or len(call.takes) > 1:
                raise Declined("the result of a collective is used by something else than one wait", Scope.ORDER)
            waits[maker] = index
    started = {index for index, call in enumerate(calls) if call.kind in COLLECTIVES}
    if started != set(waits) or len(waits) != sum(call.kind is Kind.WAIT for call in calls):
        raise Declined("a collective has no wait, or a wait no collective", Scope.ORDER)
    return waits


def find_memory(calls: Sequence[CallNode]) -> Mapping[str, str]:
    """Returns of each value a value that stands for the memory in which both lie, or may lie."""
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for call in calls:
        for name in (*call.takes, *call.gives):
            find(name)
        for name in call.takes if call.kind in (Kind.VIEW, Kind.WAIT) else ():
            for given in call.gives:
                parent[find(given)] = find(name)
    return {name: find(name) for name in parent}


def find_dependences(calls: Sequence[CallNode]) -> tuple[tuple[int, ...], ...]:
    """Returns for each call the makers of what it takes, which have to stay before it.

    Raises:
        Declined: as ``find_makers`` does.
    """
    makers = find_makers(calls)
    return tuple(tuple(sorted({makers[name] for name in call.takes if name in makers})) for call in calls)


_MOVING = COLLECTIVES | {Kind.WAIT}


def find_movable(calls: Sequence[CallNode]) -> tuple[bool, ...]:
    """Returns of each call whether it moves; all others keep their order among each other.

    There move: collectives and their waits; views of what was waited for, to their first use; and preparations. These
    are calls whose only input has no other consumer, and whose results only collectives take: the division of a
    gradient by the number of ranks, say.
    """
    makers, takers = find_makers(calls), _find_takers(calls)
    movable = [call.kind in _MOVING for call in calls]
    for index, call in enumerate(calls):
        movable[index] |= call.kind is Kind.VIEW and _is_late_view(call, calls, makers, movable)
    prepares = [False] * len(calls)
    for index in reversed(range(len(calls))):
        prepares[index] = not movable[index] and _is_preparation(index, calls, takers, prepares)
    return tuple(moves or prepared for moves, prepared in zip(movable, prepares, strict=True))


def _find_takers(calls: Sequence[CallNode]) -> Mapping[str, Sequence[int]]:
    takers: dict[str, list[int]] = defaultdict(list)
    for index, call in enumerate(calls):
        for name in dict.fromkeys(call.takes):
            takers[name].append(index)
    return takers


def _is_late_view(
    call: CallNode, calls: Sequence[CallNode], makers: Mapping[str, int], movable: Sequence[bool]
) -> bool:
    """True if a view is of nothing but what was waited for, or of such views."""
    if call.fixed or not call.takes:
        return False
    found = [makers.get(name) for name in call.takes]
    return all(maker is not None and movable[maker] and calls[maker].kind not in COLLECTIVES for maker in found)


def _is_preparation(
    index: int, calls: Sequence[CallNode], takers: Mapping[str, Sequence[int]], prepares: Sequence[bool]
) -> bool:
    call = calls[index]
    if call.fixed or not call.gives or len(set(call.takes)) != 1:
        return False
    users = [user for name in call.gives for user in takers.get(name, ())]
    only_use = len(takers[call.takes[0]]) == 1
    return only_use and bool(users) and all(calls[user].kind in COLLECTIVES or prepares[user] for user in users)


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


def measure_peaks(graph: CallGraph, order: Sequence[int]) -> PeakRecord:
    """Returns the peaks of calls in this order. What a collective takes is alive until its wait.

    Counted is what travels: what collectives take and give, what is prepared for them, and views of it. What computing
    calls give each other lives as long in every order, and its size may differ from rank to rank, where the order must
    not.
    """
    gathering, reducing = (_peak_in_flight(graph, order, kind) for kind in (Kind.GATHER, Kind.REDUCE))
    return PeakRecord(gathering, reducing, max(list_alive(graph, order), default=0))


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
