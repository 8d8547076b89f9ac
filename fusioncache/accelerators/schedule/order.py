"""Orders the calls: gathers by need, reduces after their arguments, waits where a value is first used.

Only the structure of the calls and the bytes of messages decide: no time, no name, and no size that differs by rank.
So each rank of a job finds the same sequence of collectives. Gathers that are needed together are coalesced.
"""

from __future__ import annotations

import heapq
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from fusioncache.accelerators.schedule.calls import (
    COLLECTIVES,
    CallGraph,
    Kind,
    Needs,
    find_needs,
    find_waits,
    list_alive,
    list_in_flight,
    measure_peaks,
)
from fusioncache.humanize import format_bytes
from fusioncache.ir.errors import Declined, Scope
from fusioncache.observe.record.observations import BoundRecord, FlightRecord, PeakRecord, PlacementRecord

_SHARES = 16
"""Divides the bytes of all gathers, or of all reduces if more, into batches, so that most overlap computation."""


def choose_budget(graph: CallGraph, most: int) -> int:
    """Returns how many bytes one call may coalesce: a small share of all, at most the given number."""
    total: dict[Kind, int] = defaultdict(int)
    for index, call in enumerate(graph.calls):
        if call.kind in COLLECTIVES:
            total[call.kind] += graph.message_bytes(index)
    return min(most, max(total.values(), default=0) // _SHARES)


def batch_gathers(graph: CallGraph, needs: Needs, budget: int) -> tuple[tuple[int, ...], ...]:
    """Returns the gathers in order of need, in batches that are coalesced. Takes n log n.

    A batch is one gather, or consecutive ones of one channel with at most the budget's bytes, all of which can be
    started by the time the first one must be.
    """
    gathers = [index for index, call in enumerate(graph.calls) if call.kind is Kind.GATHER]
    gathers.sort(key=lambda index: (needs.needed[index], index))
    return tuple(_batch(graph, needs, gathers, budget))


def _batch(graph: CallGraph, needs: Needs, gathers: list[int], budget: int) -> Iterator[tuple[int, ...]]:
    batch: list[int] = []
    total = 0
    for index in gathers:
        size = graph.message_bytes(index)
        joins = (
            batch
            and graph.calls[index].channel
            and total + size <= budget
            and graph.calls[index].channel == graph.calls[batch[0]].channel
            and needs.given[index] < needs.needed[batch[0]]
            and not needs.chained.keys() & {index, batch[0]}
        )
        if batch and not joins:
            yield tuple(batch)
            batch, total = [], 0
        batch.append(index)
        total += size
    if batch:
        yield tuple(batch)


LEAD = 2
"""How many reduces start after one before a second reduce of its result, as between copies of shards, waits for it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a schedule.

    Attributes:
        gathering: bytes of gathers that may be in flight; one batch of any size always may.
        reducing: the same for reduces.
        batch: bytes of small messages that one call may coalesce; 0 coalesces none.
    """

    gathering: int
    reducing: int
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """An order of calls.

    Attributes:
        steps: the calls by their positions in the order given; several in one step are coalesced collectives.
        reason: why this is the order given; empty if it is not.
    """

    steps: tuple[tuple[int, ...], ...]
    reason: str = ""

    @property
    def order(self) -> tuple[int, ...]:
        """All calls, one after the other."""
        return tuple(index for step in self.steps for index in step)


def schedule_calls(graph: CallGraph, bounds: Bounds) -> Schedule:
    """Returns an order of calls in which collectives overlap computation. Takes n log n.

    All calls except those that ``find_movable`` finds keep their order. The peak of communicated bytes alive is at most
    that of the order given: if that is impossible, the order given stays.

    Args:
        graph: the calls.
        bounds: the limits of bytes in flight.
    """
    as_given = tuple((index,) for index in range(len(graph.calls)))
    try:
        needs = find_needs(graph)
    except Declined as unscheduled:
        unscheduled.require(Scope.ORDER)
        return Schedule(as_given, unscheduled.reason)
    if not needs.waits:
        return Schedule(as_given, "there is no collective")
    most = measure_peaks(graph, range(len(graph.calls))).alive
    reason = "the order given keeps fewer bytes alive"
    for tried in (bounds, replace(bounds, batch=0), Bounds(0, 0)):
        try:
            found = Schedule(_Scheduler(graph, needs, tried).run())
        except Declined as unscheduled:
            unscheduled.require(Scope.ORDER)
            reason = unscheduled.reason
            continue
        if measure_peaks(graph, found.order).alive <= most:
            return found
    return Schedule(as_given, reason)


class _Scheduler:
    """Places one call after the other."""

    def __init__(self, graph: CallGraph, needs: Needs, bounds: Bounds):
        self.graph, self.needs, self.bounds = graph, needs, bounds
        self.steps: list[tuple[int, ...]] = []
        self.placed = [False] * len(graph.calls)
        self.flights = {Kind.GATHER: _Flights(bounds.gathering), Kind.REDUCE: _Flights(bounds.reducing)}
        self.starts = {wait: start for start, wait in needs.waits.items()}
        self.batches = batch_gathers(graph, needs, bounds.batch)
        self.batch_of = {index: number for number, batch in enumerate(self.batches) for index in batch}
        self.opening: dict[int, list[int]] = defaultdict(list)
        for number, batch in enumerate(self.batches):
            if not needs.chained.keys() & set(batch):
                self.opening[max(needs.given[index] for index in batch)].append(number)
        self.open: list[int] = []
        self.reducing: dict[int, list[int]] = defaultdict(list)
        for index, call in enumerate(graph.calls):
            if call.kind is Kind.REDUCE and index not in needs.chained:
                self.reducing[needs.ready[index]].append(index)
        self.followers: dict[int, list[int]] = defaultdict(list)
        for index, before in needs.chained.items():
            if all(graph.calls[one].kind is Kind.REDUCE for one in (index, *before)):
                self.followers[max(before)].append(index)
        self.following: deque[tuple[int, int]] = deque()
        self.started = 0
        self.pending: dict[str, dict[int, int]] = defaultdict(dict)
        self.pending_bytes: dict[str, int] = defaultdict(int)

    def run(self) -> tuple[tuple[int, ...], ...]:
        """Returns the steps.

        Raises:
            Declined: if a call would have to move before its dependences.
        """
        self._enter(-1)
        for stage, index in enumerate(self.needs.staged):
            if stage == len(self.needs.staged) - 1:
                self._send_followers(lead=0)
                self._place_rest(range(index))
            self._place_needed(index)
            self._start_gathers()
            self._place(index)
            self._enter(stage)
        self._place_rest(range(len(self.graph.calls)))
        return tuple(self.steps)

    def _enter(self, stage: int) -> None:
        """Starts the collectives that can be started now that this stage is done."""
        for number in self.opening[stage]:
            heapq.heappush(self.open, number)
        for index in self.reducing[stage]:
            if not self.placed[index]:
                self._send(index)
        self._send_followers()

    def _start_gathers(self) -> None:
        """Starts the next gathers in order of need, as many as may be in flight."""
        flights = self.flights[Kind.GATHER]
        while self.open:
            batch = self.batches[self.open[0]]
            if not self.placed[batch[0]]:
                if not flights.fits(self._bytes(batch)):
                    return
                self._start(batch)
            heapq.heappop(self.open)

    def _send(self, index: int) -> None:
        """Starts a reduce, or holds it until others can be coalesced with it."""
        channel, size = self.graph.calls[index].channel, self.graph.message_bytes(index)
        # A result that computation uses would be needed before others are ready, with no computation to overlap.
        is_returned = self.needs.needed[index] == len(self.needs.staged) - 1
        if not channel or not is_returned:
            self._start((index,))
            return
        if self.pending_bytes[channel] + size > self.bounds.batch:
            self._flush(channel)
        self.pending[channel][index] = size
        self.pending_bytes[channel] += size
        if self.pending_bytes[channel] >= self.bounds.batch:
            self._flush(channel)

    def _send_followers(self, lead: int = LEAD) -> None:
        """Starts reduces of reduced values, if ``lead`` other reduces were started since: the first are likely done."""
        while self.following and self.following[0][0] + lead <= self.started:
            _, index = self.following.popleft()
            if not self.placed[index] and all(self.placed[one] for one in self.needs.chained[index]):
                self._send(index)

    def _note_start(self, index: int) -> None:
        """Records that a reduce was started, and the reduces that follow it."""
        self.started += index not in self.needs.chained
        self.following.extend((self.started, follower) for follower in self.followers[index])

    def _flush(self, channel: str) -> None:
        batch = self.pending.pop(channel, {})
        self.pending_bytes[channel] = 0
        if batch:
            self._start(tuple(batch))

    def _start(self, batch: Sequence[int]) -> None:
        """Starts coalesced collectives, once the bounds allow it and after their dependences."""
        kind = self.graph.calls[batch[0]].kind
        flights, size = self.flights[kind], self._bytes(batch)
        for one in flights.oldest_first():
            wait = self.needs.waits[one]
            if flights.fits(size):
                break
            if all(self.placed[needed] for needed in self.needs.dependences[wait]):
                self._place(wait)
        if not flights.fits(size):
            raise Declined("what is in flight cannot be waited for yet", Scope.ORDER)
        for index in batch:  # after the waits, which free memory that is allocated here
            self._place_needed(index)
        for index in batch:
            flights.start(index, self.graph.message_bytes(index))
            self.placed[index] = True
        self.steps.append(tuple(batch))
        if kind is Kind.REDUCE:
            for index in batch:
                self._note_start(index)

    def _place_rest(self, indices: Iterable[int]) -> None:
        for index in indices:
            if self.needs.movable[index] and not self.placed[index]:
                self._place_needed(index)
                self._place_moved(index)

    def _place_needed(self, wanted: int) -> None:
        """Places all dependences of a call, each after its own dependences."""
        stack = [wanted]
        while stack:
            index = stack[-1]
            missing = [one for one in self.needs.dependences[index] if not self.placed[one]]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            if index != wanted and not self.placed[index]:
                self._place_moved(index)

    def _place_moved(self, index: int) -> None:
        call = self.graph.calls[index]
        if not self.needs.movable[index]:
            raise Declined("a collective would start before what it depends on", Scope.ORDER)
        if call.kind not in COLLECTIVES:
            self._place(index)
        elif call.kind is Kind.GATHER:
            self._start(self.batches[self.batch_of[index]])
        elif index in self.pending[call.channel]:
            self._flush(call.channel)
        else:
            self._start((index,))

    def _place(self, index: int) -> None:
        if self.placed[index]:
            return
        self.placed[index] = True
        self.steps.append((index,))
        start = self.starts.get(index)
        if start is not None:
            self.flights[self.graph.calls[start].kind].end(start)

    def _bytes(self, batch: Iterable[int]) -> int:
        return sum(self.graph.message_bytes(index) for index in batch)


class _Flights:
    """Collectives of one kind that were started and not waited for, with a bound on their bytes.

    Args:
        bound: how many bytes may be in flight; a larger batch is in flight alone.
    """

    def __init__(self, bound: int):
        self._bound = bound
        self._bytes: dict[int, int] = {}
        self._total = 0

    def fits(self, size: int) -> bool:
        """True if this many more bytes may be in flight."""
        return not self._bytes or self._total + size <= self._bound

    def start(self, index: int, size: int) -> None:
        """Records that a collective was started."""
        self._bytes[index] = size
        self._total += size

    def end(self, index: int) -> None:
        """Records that a collective was waited for."""
        self._total -= self._bytes.pop(index)

    def oldest_first(self) -> Iterator[int]:
        """Yields the collectives in flight in the order in which they were started."""
        yield from tuple(self._bytes)


def _list_flights(graph: CallGraph, schedule: Schedule) -> Iterator[FlightRecord]:
    """Yields a record of each collective's time in flight, in the order in which they start. Steps count from 0."""
    calls = graph.calls
    step_of = {index: number for number, step in enumerate(schedule.steps) for index in step}
    computed = _count_computed(graph, schedule)
    for start, wait in sorted(find_waits(calls).items(), key=lambda pair: (step_of[pair[0]], step_of[pair[1]])):
        name = calls[start].message or calls[start].name
        beside = computed[wait] - computed[start]
        size = graph.message_bytes(start)
        yield FlightRecord(str(calls[start].kind), name, size, step_of[start], step_of[wait], beside)


_UNBOUNDED = sys.maxsize


def _measure_bounds(graph: CallGraph, schedule: Schedule, bounds: Bounds) -> Iterator[BoundRecord]:
    """Yields the cost of each bound on bytes in flight, for gathers and for reduces, if there are any of these.

    A schedule without a bound is made only if the bound may have delayed a collective. It takes n log n.

    Args:
        graph: the calls.
        schedule: their order.
        bounds: of the schedule.
    """
    peaks = measure_peaks(graph, schedule.order)
    for name, kind, bound, most, free in (
        ("gathers in flight", Kind.GATHER, bounds.gathering, peaks.gathering, replace(bounds, gathering=_UNBOUNDED)),
        ("reduces in flight", Kind.REDUCE, bounds.reducing, peaks.reducing, replace(bounds, reducing=_UNBOUNDED)),
    ):
        sizes = [graph.message_bytes(index) for index, call in enumerate(graph.calls) if call.kind is kind]
        if not sizes:
            continue
        if schedule.reason or most + max(max(sizes), bounds.batch) <= bound:
            yield BoundRecord(name, bound, most, most, 0)
            continue
        other = schedule_calls(graph, free)
        found = measure_peaks(graph, other.order)
        ours, theirs = _count_computed(graph, schedule), _count_computed(graph, other)
        delayed = sum(theirs[index] < ours[index] for index in ours if graph.calls[index].kind is kind)
        yield BoundRecord(name, bound, most, found.gathering if kind is Kind.GATHER else found.reducing, delayed)


def _count_computed(graph: CallGraph, schedule: Schedule) -> dict[int, int]:
    """Returns for each call how many calls are computed before it."""
    computed = accumulate((graph.calls[index].kind is Kind.COMPUTE for index in schedule.order), initial=0)
    return dict(zip(schedule.order, computed, strict=False))


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of a trace's collectives. As text it is one line.

    Attributes:
        graph: the calls in the order given.
        schedule: their order now.
        bounds: of the schedule.
    """

    graph: CallGraph
    schedule: Schedule
    bounds: Bounds

    @property
    def unchanged_reason(self) -> str:
        """The reason why the order given stays; empty if it does not."""
        return self.schedule.reason

    @property
    def collectives(self) -> int:
        """The number of collectives."""
        return sum(call.kind in COLLECTIVES for call in self.graph.calls)

    @property
    def starts(self) -> int:
        """The number of calls that start them."""
        return sum(self.graph.calls[step[0]].kind in COLLECTIVES for step in self.schedule.steps)

    def before(self) -> PeakRecord:
        """Returns the most bytes in flight and alive in the order given."""
        return measure_peaks(self.graph, range(len(self.graph.calls)))

    def after(self) -> PeakRecord:
        """Returns the most bytes in flight and alive now."""
        return measure_peaks(self.graph, self.schedule.order)

    def describe(self) -> PlacementRecord:
        """Returns the record of the placement, without the identity of its trace.

        A step of coalesced collectives has the name of the first one.

        Raises:
            Declined: if the calls are not understood.
        """
        steps = self.schedule.steps
        alive = dict(zip(self.schedule.order, list_alive(self.graph, self.schedule.order), strict=True))
        return PlacementRecord(
            model=None,
            trace="forward",
            trace_number=0,
            reason=self.unchanged_reason,
            calls=tuple(self.graph.calls[step[0]].name for step in steps),
            alive=tuple(max(alive[index] for index in step) for step in steps),
            flights=tuple(_list_flights(self.graph, self.schedule)),
            before=self.before(),
            after=self.after(),
            bounds=tuple(_measure_bounds(self.graph, self.schedule, self.bounds)),
        )

    def timeline(self) -> str:
        """Returns a line for each call, with the bytes in flight after those that start or end collectives."""
        return "\n".join(_write_steps(self.graph, self.schedule))

    def __str__(self) -> str:
        if self.unchanged_reason:
            return f"{self.collectives} collectives, as Thunder ordered them: {self.unchanged_reason}"
        before, after = self.before(), self.after()
        return (
            f"{self.collectives} collectives in {self.starts} calls: gathers in flight "
            f"{format_bytes(after.gathering)} at most ({format_bytes(before.gathering)} as Thunder ordered them), "
            f"reduces {format_bytes(after.reducing)} ({format_bytes(before.reducing)}), "
            f"what travels alive {format_bytes(after.alive)} ({format_bytes(before.alive)})"
        )


def _write_steps(graph: CallGraph, schedule: Schedule) -> Iterator[str]:
    """Yields a line for each step, with the bytes in flight after steps that start or end collectives."""
    in_flight = dict(zip(schedule.order, list_in_flight(graph, schedule.order, COLLECTIVES), strict=True))
    for step in schedule.steps:
        kind = graph.calls[step[0]].kind
        line = f"{kind:<8} " + " + ".join(_write_call(graph, index) for index in step)
        yield f"{line:<49} # {in_flight[step[-1]]} B in flight" if kind in COLLECTIVES or kind is Kind.WAIT else line


def _write_call(graph: CallGraph, index: int) -> str:
    call = graph.calls[index]
    given = f"{', '.join(call.outputs)} = " if call.outputs else ""
    return f"{given}{call.name}({', '.join(call.inputs)})"
