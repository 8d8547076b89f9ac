"""Applies an order to Thunder's traces, so that collectives overlap computation. Records where they were placed.

Ranks compare the collectives that they are about to run: a rank that differs raises, instead of all waiting forever.
Before a program first runs in a process, its collectives on each group are written into the job's store, under the
number of collectives that ran on that group before. Then those of other ranks under the same number are read. No rank
waits: of two ranks that write and then read, at least one finds the other's. So it does no harm if ranks first run a
program at different times, if one repeats a program that is new to another, or if one writes nothing.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch

from fusioncache.accelerators.schedule.calls import CallGraph
from fusioncache.accelerators.schedule.collective_passes import (
    coalesce_steps,
    gather_again,
    reduce_in_place,
    save_shards,
)
from fusioncache.accelerators.schedule.collectives import exchanges, group_of, has_collectives, read_calls, read_message
from fusioncache.accelerators.schedule.order import Bounds, Placement, choose_budget, schedule_calls
from fusioncache.cache.peers import find_job_store
from fusioncache.process import forks
from fusioncache.process.warning import log_errors, warn_once
from fusioncache.thunder_adapter.api import PrimIDs, get_compile_data, get_skip_data_parallel_grad_sync
from fusioncache.transform.passes import Accelerator, Pass, TraceContext, pair_passes
from fusioncache.transform.rewrite import deletes, derive, make_symbol

_REMEDY = (
    "The ranks run different models, or one has other settings, and would wait for each other for ever. "
    'FusionCache(schedule="thunder") compares nothing, and leaves collectives in the order that Thunder makes.'
)


class CollectiveMismatch(RuntimeError):
    """Ranks of a job were about to run different collectives, and would have waited for each other for ever."""


@dataclass(frozen=True, slots=True)
class GroupSequence:
    """The collectives of a program on one group.

    Attributes:
        group: the process group.
        name: of the group, the same on all its ranks.
        ranks: of the group.
        messages: a line for each collective, in order.
    """

    group: Any
    name: str
    ranks: tuple[int, ...]
    messages: Sequence[str]

    @classmethod
    def of(cls, group: Any, messages: Iterable[str]) -> GroupSequence:
        """Returns the sequence of collectives with these messages on a process group."""
        ranks = torch.distributed.get_process_group_ranks(group)
        return cls(group, group.group_name, tuple(ranks), tuple(messages))


class CollectiveCounts:
    """The number of collectives that the programs of this process have run on each group."""

    def __init__(self) -> None:
        self._counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._lock = forks.lock()

    def advance(self, group: Any, count: int) -> int:
        """Adds a number of collectives; returns how many there were before."""
        with self._lock:
            before = self._counts.get(group, 0)
            self._counts[group] = before + count
            return before


@cache
def counts_of_process() -> CollectiveCounts:
    """Returns the counts of this process, the same object each time."""
    return CollectiveCounts()


class CollectiveAgreement:
    """Compares the collectives of a program with those of other ranks of each group, before its first run.

    Args:
        stretches: the collectives of a program, by group.
        rank: of this process.
        store: the job's store.
        places: counts the collectives that were run before.

    Attributes:
        stretches: the same.
    """

    def __init__(self, stretches: Sequence[GroupSequence], rank: int, store: Any, places: CollectiveCounts):
        self.stretches = stretches
        self._rank = rank
        self._store = store
        self._places = places
        self._told = False

    def __call__(self) -> None:
        """Counts the collectives that run now. The first time it also publishes them, and reads those of other ranks.

        Raises:
            CollectiveMismatch: if another rank published others, with the first difference.
        """
        places = [self._places.advance(stretch.group, len(stretch.messages)) for stretch in self.stretches]
        if self._told:
            return
        self._told = True
        for stretch, place in zip(self.stretches, places, strict=True):
            difference = self._compare(stretch, f"sequence/{stretch.name}/{place}")
            if difference:
                raise CollectiveMismatch(f"{difference}. {_REMEDY}")

    def _compare(self, stretch: GroupSequence, place: str) -> str:
        """Publishes the collectives, and returns how those of another rank differ. An error here must not end a job."""
        with log_errors("ranks do not compare their collectives"):
            self._publish(stretch.messages, place)
            # The first rank reads all others, and they read the first: each difference involves the first rank.
            others = stretch.ranks[1:] if stretch.ranks[0] == self._rank else stretch.ranks[:1]
            return next(filter(None, (self._describe_mismatch(stretch.messages, place, other) for other in others)), "")
        return ""

    def _publish(self, messages: Sequence[str], place: str) -> None:
        self._store.set(f"{place}/{self._rank}/text", "\n".join(messages))
        self._store.set(f"{place}/{self._rank}/digest", _digest(messages))

    def _describe_mismatch(self, ours: Sequence[str], place: str, other: int) -> str:
        if not self._store.check([f"{place}/{other}/digest"]):
            return ""
        if bytes(self._store.get(f"{place}/{other}/digest")).decode() == _digest(ours):
            return ""
        theirs = bytes(self._store.get(f"{place}/{other}/text")).decode().splitlines()
        return _explain_first_difference(ours, theirs, f"rank {self._rank}", f"rank {other}")


def _digest(messages: Sequence[str]) -> str:
    """Returns the digest of a sequence of messages, one line of text for each collective."""
    return hashlib.sha256("\n".join(messages).encode()).hexdigest()


def _explain_first_difference(ours: Sequence[str], theirs: Sequence[str], we: str, they: str) -> str:
    """Returns the first difference of two sequences, in words; empty if one is a prefix of the other.

    Args:
        ours: one sequence.
        theirs: the other one.
        we: the name of the rank of the first sequence.
        they: the name of the rank of the other one.
    """
    for number, (our, their) in enumerate(zip(ours, theirs, strict=False), start=1):
        if our != their:
            return f"collective {number} is {our} on {we}, and {their} on {they}"
    return ""


def find_stretches(symbols: Iterable[Any]) -> tuple[GroupSequence, ...]:
    """Returns the collectives of a trace, by their groups."""
    groups: dict[str, Any] = {}
    found: dict[str, list[str]] = defaultdict(list)
    for symbol in symbols:
        if exchanges(symbol):
            group = group_of(symbol)
            groups[group.group_name] = group
            found[group.group_name].append(read_message(symbol))
    return tuple(GroupSequence.of(groups[name], messages) for name, messages in found.items())


def agree_first(trace: Any) -> Any:
    """Returns a trace in which ranks compare its collectives before the first one starts.

    It is the same trace if it has no collectives, if this process is alone, or if its job has the fake backend.

    Args:
        trace: a final one.
    """
    store = find_job_store() if has_collectives(trace.bound_symbols) else None
    if store is None or torch.distributed.get_backend() == "fake":
        return trace
    stretches, rank = find_stretches(trace.bound_symbols), torch.distributed.get_rank()
    agreement = CollectiveAgreement(stretches, rank, store, counts_of_process())
    first = next(index for index, symbol in enumerate(trace.bound_symbols) if exchanges(symbol))
    symbols = list(trace.bound_symbols)
    symbols.insert(first, make_symbol("agree_on_collectives", agreement, None).bind(output=None))
    return derive(trace, symbols, "Collectives told to other ranks by fusioncache")


IN_FLIGHT_BYTES = 512 * 2**20
"""The default limit of bytes in flight: nine weight matrices of a 7b model. An H200 then hides most transfers."""

BUCKET_BYTES = 256 * 2**20
"""The default limit of bytes that one call coalesces."""
_LOST = (
    "under Thunder's fsdp, what runs inside of no_sync() leaves no gradients at all, and the model is trained on the "
    "other batches alone; leave no_sync() out, and gradients of several batches add up"
)


@dataclass(frozen=True, slots=True)
class CollectiveOptions:
    """The user's options for collectives.

    Attributes:
        moves: whether collectives are moved.
        in_flight_bytes: the limit for gathers, and for reduces, in flight.
        bucket_bytes: the limit for small collectives that one call coalesces; None chooses it for each trace.
    """

    moves: bool
    in_flight_bytes: int
    bucket_bytes: int | None

    @classmethod
    def of(cls, schedule: str, in_flight_bytes: int | None, bucket_bytes: int | None) -> CollectiveOptions:
        """Returns the options of a ``FusionCache``.

        Raises:
            ValueError: if one is invalid.
        """
        if schedule not in ("auto", "thunder"):
            raise ValueError(f'schedule must be "auto" or "thunder", got {schedule!r}')
        for name, given in (("in_flight_bytes", in_flight_bytes), ("bucket_bytes", bucket_bytes)):
            if given is not None and given < 0:
                raise ValueError(f"{name} must not be negative, got {given!r}")
        return cls(schedule == "auto", IN_FLIGHT_BYTES if in_flight_bytes is None else in_flight_bytes, bucket_bytes)

    def bound(self, graph: CallGraph, *, coalesces: bool) -> Bounds:
        """Returns the bounds for the calls of a trace, whose small collectives may be coalesced or not."""
        if not coalesces:
            return Bounds(self.in_flight_bytes, self.in_flight_bytes)
        # Half of the bytes in flight: while one half is used, the other is gathered.
        most = min(BUCKET_BYTES, self.in_flight_bytes // 2)
        batch = choose_budget(graph, most) if self.bucket_bytes is None else self.bucket_bytes
        return Bounds(self.in_flight_bytes, self.in_flight_bytes, batch)


class Collectives(Accelerator):
    """The accelerator of collectives.

    Args:
        options: the user's.
        report_unchanged: reports why collectives stay in Thunder's order.

    Attributes:
        options: the same.
        placements: of the collectives of each trace that has some and was understood.
    """

    name = "schedule"

    def __init__(self, options: CollectiveOptions, report_unchanged: Callable[[str], None]):
        self.options = options
        self.placements: list[Placement] = []
        self._report_left = report_unchanged

    def passes(self) -> Sequence[Pass]:
        """Returns the passes; if collectives are not to be moved, only the one that warns."""
        last = Pass("agreement", self._agree)
        shards = pair_passes("saved shards", lambda trace, _: save_shards(trace), gather_again)
        return (shards, Pass("collectives", self._place), last) if self.options.moves else (last,)

    def ingredients(self) -> str:
        """Returns the options as text."""
        return str(self.options)

    def _place(self, trace: Any, context: TraceContext) -> Any:
        """Moves collectives so that they overlap computation, and records where."""
        if not has_collectives(trace.bound_symbols):
            return trace
        trace, placement = move_collectives(trace, self.options)
        self.placements.append(placement)
        if placement.unchanged_reason:
            self._report_left(f"the order of collectives stays: {placement.unchanged_reason}")
        context.notes.record_placement(placement.describe)
        return trace

    def _agree(self, trace: Any, context: TraceContext) -> Any:
        """Makes ranks compare moved collectives before the first run, and warns of lost gradients."""
        if not has_collectives(trace.bound_symbols):
            return trace
        _warn_of_lost_gradients()
        return agree_first(trace) if self.options.moves else trace


def move_collectives(trace: Any, options: CollectiveOptions) -> tuple[Any, Placement]:
    """Returns a trace with gathers in the order of need, reduces after their arguments, and waits at first uses.

    Small collectives are coalesced. Computation keeps its order, and so do random numbers. ``del`` statements are
    inserted anew.

    Args:
        trace: a final one.
        options: the user's.

    Returns:
        The trace in another order, or the same one, and the placement of its collectives.

    Raises:
        Declined: if the trace contains an operation whose effect is not known.
    """
    symbols = [symbol for symbol in trace.bound_symbols if not deletes(symbol)]
    symbols.sort(key=lambda symbol: not _names_argument(symbol))
    graph = read_calls(symbols)
    bounds = options.bound(graph, coalesces=_can_coalesce(symbols))
    found = Placement(graph, schedule_calls(graph, bounds), bounds)
    if found.unchanged_reason:
        return trace, found
    symbols = reduce_in_place(symbols)
    placed = coalesce_steps([symbols[index] for index in step] for step in found.schedule.steps)
    return derive(trace, placed, "Collectives in their place by fusioncache"), found


def _can_coalesce(symbols: Iterable[Any]) -> bool:
    """True if collectives may be coalesced: over NCCL only, for which this is made. Gloo was once seen to abort."""
    groups = (group_of(symbol) for symbol in symbols if exchanges(symbol))
    return all(torch.distributed.get_backend(group) == "nccl" for group in groups)


def _names_argument(symbol: Any) -> bool:
    """True if a bound symbol only names an argument. Thunder puts these before first uses."""
    return bool(symbol.sym.id == PrimIDs.UNPACK_TRIVIAL)


def _warn_of_lost_gradients() -> None:
    """Warns once if the model that Thunder is compiling is sharded by ``fsdp``, and runs inside of ``no_sync()``.

    Thunder's backward function then returns None for all gradients. A pass used to stash them first; now none does.
    """
    if get_skip_data_parallel_grad_sync() and getattr(get_compile_data(), "use_fsdp", False):
        warn_once(_LOST)
