"""The calls to be scheduled, and the constraints on their order.

Calls compute, start a collective or wait for one. A call stays after the calls that make its arguments. This determines
when a call can run, when it must run, and how many bytes an order keeps alive and in flight. No call writes into memory
that others read: see ``check_effects``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fusioncache.ir.errors import Declined, Scope
from fusioncache.observe.record.observations import PeakRecord


class Kind(StrEnum):
    """The kind of a call in a schedule."""

    COMPUTE = "compute"
    """Computes, or does anything else that is not one of the others."""
    VIEW = "view"
    """Returns a view of its arguments, and computes nothing."""
    GATHER = "gather"
    """Starts a collective that concatenates the tensors of all ranks."""
    REDUCE = "reduce"
    """Starts a collective that adds up the tensors of all ranks."""
    WAIT = "wait"
    """Ends a collective: takes its result, and returns the value that may be used."""


COLLECTIVES = frozenset({Kind.GATHER, Kind.REDUCE})
"""The kinds that start a collective: all ranks must run these in the same order."""


@dataclass(frozen=True, slots=True)
class CallNode:
    """One call. Values have names, and at most one call makes each.

    Attributes:
        kind: its kind.
        name: for display only.
        inputs: the values that it reads.
        outputs: the values that it makes.
        fixed: whether it must not move although it seems to be pure: it has an effect, or draws random numbers.
        channel: collectives of one channel may be coalesced; one without a channel runs alone.
        message: the properties of a collective that must be the same on every rank, as text.
    """

    kind: Kind
    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    fixed: bool = False
    channel: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class CallGraph:
    """Calls in the order given, and the sizes of their values in bytes.

    A value that no call makes is an input: its memory is the caller's, and not counted. The last computing call must be
    the return, or else values without a consumer are not kept alive.

    Attributes:
        calls: in the order given, in which each value is made before it is read.
        sizes: the bytes of values; a missing value has none.
    """

    calls: tuple[CallNode, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)

    def bytes_of(self, *names: str) -> int:
        """Returns the size of these values in bytes."""
        return sum(self.sizes.get(name, 0) for name in names)

    def message_bytes(self, index: int) -> int:
        """Returns how many bytes a collective moves: those of its arguments or its results, the larger of both."""
        call = self.calls[index]
        return max(self.bytes_of(*call.inputs), self.bytes_of(*call.outputs))


def find_producers(calls: Sequence[CallNode]) -> Mapping[str, int]:
    """Returns the call that makes each value.

    Raises:
        Declined: if a value is made twice, or read before it is made.
    """
    producers: dict[str, int] = {}
    inputs: set[str] = set()
    for index, call in enumerate(calls):
        inputs.update(name for name in call.inputs if name not in producers)
        for name in call.outputs:
            if name in producers or name in inputs:
                raise Declined("a value is defined twice, or too late", Scope.ORDER)
            producers[name] = index
    return producers


def find_waits(calls: Sequence[CallNode]) -> Mapping[int, int]:
    """Returns the wait of each collective.

    Raises:
        Declined: if a collective has not exactly one wait, or another call uses its result.
    """
    producers, waits = find_producers(calls), dict[int, int]()
    for index, call in enumerate(calls):
        for name in call.inputs:
            producer = producers.get(name)
            if producer is None or calls[producer].kind not in COLLECTIVES:
                continue
            if call.kind is not Kind.WAIT or producer in waits or len(call.inputs) > 1:
                raise Declined("the result of a collective is used by something else than one wait", Scope.ORDER)
            waits[producer] = index
    started = {index for index, call in enumerate(calls) if call.kind in COLLECTIVES}
    if started != set(waits) or len(waits) != sum(call.kind is Kind.WAIT for call in calls):
        raise Declined("a collective has no wait, or a wait no collective", Scope.ORDER)
    return waits


def find_memory(calls: Sequence[CallNode]) -> Mapping[str, str]:
    """Returns for each value a value that represents its memory, the same for values that share memory or may do so."""
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for call in calls:
        for name in (*call.inputs, *call.outputs):
            find(name)
        for name in call.inputs if call.kind in (Kind.VIEW, Kind.WAIT) else ():
            for given in call.outputs:
                parent[find(given)] = find(name)
    return {name: find(name) for name in parent}


_MOVING = COLLECTIVES | {Kind.WAIT}


def find_movable(calls: Sequence[CallNode]) -> tuple[bool, ...]:
    """Returns for each call whether it moves; the others keep their relative order.

    Collectives and their waits move, views of the results of waits (to their first use), and preparations. These are
    calls whose only input has no other consumer, and whose results only collectives use, such as the division of a
    gradient by the number of ranks.
    """
    producers, consumers = find_producers(calls), _find_consumers(calls)
    movable = [call.kind in _MOVING for call in calls]
    for index, call in enumerate(calls):
        movable[index] |= call.kind is Kind.VIEW and _is_late_view(call, calls, producers, movable)
    prepares = [False] * len(calls)
    for index in reversed(range(len(calls))):
        prepares[index] = not movable[index] and _is_preparation(index, calls, consumers, prepares)
    return tuple(moves or prepared for moves, prepared in zip(movable, prepares, strict=True))


def _find_consumers(calls: Sequence[CallNode]) -> Mapping[str, Sequence[int]]:
    consumers: dict[str, list[int]] = defaultdict(list)
    for index, call in enumerate(calls):
        for name in dict.fromkeys(call.inputs):
            consumers[name].append(index)
    return consumers


def _is_late_view(
    call: CallNode, calls: Sequence[CallNode], producers: Mapping[str, int], movable: Sequence[bool]
) -> bool:
    """True if a call only views the results of waits, or of such views."""
    if call.fixed or not call.inputs:
        return False
    found = [producers.get(name) for name in call.inputs]
    return all(each is not None and movable[each] and calls[each].kind not in COLLECTIVES for each in found)


def _is_preparation(
    index: int, calls: Sequence[CallNode], consumers: Mapping[str, Sequence[int]], prepares: Sequence[bool]
) -> bool:
    call = calls[index]
    if call.fixed or not call.outputs or len(set(call.inputs)) != 1:
        return False
    users = [user for name in call.outputs for user in consumers.get(name, ())]
    only_use = len(consumers[call.inputs[0]]) == 1
    return only_use and bool(users) and all(calls[user].kind in COLLECTIVES or prepares[user] for user in users)


@dataclass(frozen=True, slots=True)
class Needs:
    """The constraints on the order of calls. A stage is a position among the calls that keep their order, from 0 on.

    Attributes:
        dependences: the calls that must stay before each call.
        movable: whether each call moves.
        staged: the calls that keep their order.
        ready: the stage after which each call can run; -1 is before all stages.
        given: the stage after which each call is in the order given.
        needed: the stage before which each call must run.
        waits: the wait of each collective.
        chained: the other collectives on whose results a collective depends, if no call between keeps its order.
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
    """Returns the constraints on the order of calls. Linear in the calls and their arguments and results.

    Raises:
        Declined: if the calls are not understood.
    """
    calls, producers, movable = graph.calls, find_producers(graph.calls), find_movable(graph.calls)
    dependences = tuple(tuple(sorted({producers[name] for name in call.inputs if name in producers})) for call in calls)
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
    waits = dict(find_waits(calls))
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
    """Returns the last collectives on which each collective depends, if no call between keeps its order."""
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
    """Returns the peaks of calls in this order. Arguments of a collective are alive until its wait.

    Only communicated values are counted: arguments and results of collectives, preparations for them, and views. Values
    between computing calls live equally long in every order, and their sizes may differ from rank to rank, while the
    order must not.
    """
    flights = (list_in_flight(graph, order, {kind}) for kind in (Kind.GATHER, Kind.REDUCE))
    gathering, reducing = (max(flight, default=0) for flight in flights)
    return PeakRecord(gathering, reducing, max(list_alive(graph, order), default=0))


def list_in_flight(graph: CallGraph, order: Sequence[int], kinds: Collection[Kind]) -> Iterator[int]:
    """Yields how many bytes of these kinds are in flight after each call, in this order of the calls."""
    producers = find_producers(graph.calls)
    now = 0
    for index in order:
        call = graph.calls[index]
        if call.kind in kinds:
            now += graph.message_bytes(index)
        elif call.kind is Kind.WAIT and graph.calls[producers[call.inputs[0]]].kind in kinds:
            now -= graph.message_bytes(producers[call.inputs[0]])
        yield now


def list_alive(graph: CallGraph, order: Sequence[int]) -> tuple[int, ...]:
    """Returns how many bytes of communicated values are alive during each call, in this order of the calls."""
    calls, memory = graph.calls, find_memory(graph.calls)
    producers = find_producers(calls)
    starts = {wait: start for start, wait in find_waits(calls).items()}
    travels = {
        memory[name]
        for call, moves in zip(calls, find_movable(calls), strict=True)
        if moves
        for name in (*call.inputs, *call.outputs)
    }
    owned = travels - {memory[name] for name in memory if name not in producers}
    # A view has no memory of its own. The size of an expanded one may differ from rank to rank.
    views = {name for call in calls if call.kind is Kind.VIEW for name in call.outputs}
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
    """Returns the memory that a call touches; for a wait, also that of its collective."""
    touching = (index, starts[index]) if index in starts else (index,)
    calls = (graph.calls[one] for one in touching)
    return {memory[name] for call in calls for name in (*call.inputs, *call.outputs)}
