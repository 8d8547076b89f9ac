"""Ranks tell each other which collectives they are about to run: who differs is told so, where all else would wait.

Before a program first runs in a process, this writes into the job's store which collectives it has for each group, and
at which place among all that ran on that group, and reads what the others have written for the same place. None
waits: of two ranks that write and then read, one at least finds what the other one wrote. So it does no harm that ranks
meet a program at different times, that one runs again what is new to another one, or that one writes nothing.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from fusioncache.accelerators.schedule.collectives import exchanges, group_of, has_collectives, read_message
from fusioncache.cache.peers import find_job_store
from fusioncache.process import forks
from fusioncache.transform.rewrite import derive, make_symbol

logger = logging.getLogger("fusioncache")

_REMEDY = (
    "The ranks run different models, or one has other settings, and would wait for each other for ever. "
    'FusionCache(schedule="thunder") compares nothing, and leaves collectives in the order that Thunder makes.'
)


class CollectiveMismatch(RuntimeError):
    """Ranks of a job were about to run different collectives, and would have waited for each other for ever."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The collectives of a program on one group.

    Attributes:
        group: the process group.
        name: of the group, the same on all its ranks.
        ranks: those of the group.
        messages: a line for each collective, in order.
    """

    group: Any
    name: str
    ranks: tuple[int, ...]
    messages: Sequence[str]


class CollectiveCounts:
    """How many collectives the programs of this process have run on each group."""

    def __init__(self) -> None:
        self._counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._lock = forks.lock()

    def advance(self, group: Any, count: int) -> int:
        """Adds so many collectives; returns how many there were before."""
        with self._lock:
            before = self._counts.get(group, 0)
            self._counts[group] = before + count
            return before


@cache
def counts_of_process() -> CollectiveCounts:
    """Returns the places of this process, the same each time."""
    return CollectiveCounts()


class CollectiveAgreement:
    """What this rank is about to do, told to the others of each group before the first time.

    Args:
        stretches: the collectives of a program, by group.
        rank: of this process.
        store: where the ranks meet.
        places: how many collectives were run before.

    Attributes:
        stretches: these.
    """

    def __init__(self, stretches: Sequence[Stretch], rank: int, store: Any, places: CollectiveCounts):
        self.stretches = stretches
        self._rank = rank
        self._store = store
        self._places = places
        self._told = False

    def __call__(self) -> None:
        """Counts what runs now. The first time it also tells the others, and reads what they told.

        Raises:
            CollectiveMismatch: if another rank told something else, with the first difference.
        """
        places = [self._places.advance(stretch.group, len(stretch.messages)) for stretch in self.stretches]
        if self._told:
            return
        self._told = True
        for stretch, place in zip(self.stretches, places, strict=True):
            difference = self._compare(stretch, f"sequence/{stretch.name}/{place}")
            if difference:
                raise CollectiveMismatch(f"{difference}. {_REMEDY}")

    def _compare(self, stretch: Stretch, place: str) -> str:
        """Tells the others and returns in what one of them differs. What fails here must not end a job."""
        try:
            self._tell(stretch.messages, place)
            # The first rank reads all the others, and they read it: each difference is between the first and another.
            others = stretch.ranks[1:] if stretch.ranks[0] == self._rank else stretch.ranks[:1]
            return next(filter(None, (self._differ(stretch.messages, place, other) for other in others)), "")
        except Exception as error:
            logger.info("ranks do not compare their collectives", exc_info=error)
            return ""

    def _tell(self, messages: Sequence[str], place: str) -> None:
        self._store.set(f"{place}/{self._rank}/text", "\n".join(messages))
        self._store.set(f"{place}/{self._rank}/digest", _digest(messages))

    def _differ(self, ours: Sequence[str], place: str, other: int) -> str:
        if not self._store.check([f"{place}/{other}/digest"]):
            return ""
        if bytes(self._store.get(f"{place}/{other}/digest")).decode() == _digest(ours):
            return ""
        theirs = bytes(self._store.get(f"{place}/{other}/text")).decode().splitlines()
        return _explain_first_difference(ours, theirs, f"rank {self._rank}", f"rank {other}")


def _digest(messages: Sequence[str]) -> str:
    """Returns the digest of a sequence of collectives: a line of text for each, with what all ranks must agree on."""
    return hashlib.sha256("\n".join(messages).encode()).hexdigest()


def _explain_first_difference(ours: Sequence[str], theirs: Sequence[str], we: str, they: str) -> str:
    """Returns in what two sequences first differ, in words; nothing if one of them begins as the other one does.

    Args:
        ours: one of them.
        theirs: the other one.
        we: whose the one is.
        they: whose the other one is.
    """
    for number, (our, their) in enumerate(zip(ours, theirs, strict=False), start=1):
        if our != their:
            return f"collective {number} is {our} on {we}, and {their} on {they}"
    return ""


def find_stretches(symbols: Iterable[Any]) -> tuple[Stretch, ...]:
    """Returns the collectives of a trace, by their groups."""
    found: dict[str, list[str]] = defaultdict(list)
    groups: dict[str, tuple[Any, tuple[int, ...]]] = {}
    for symbol in symbols:
        if exchanges(symbol):
            message, group = read_message(symbol), group_of(symbol)
            groups[group.group_name] = group, message.ranks
            found[group.group_name].append(message.text)
    return tuple(Stretch(group, name, ranks, tuple(found[name])) for name, (group, ranks) in groups.items())


def agree_first(trace: Any) -> Any:
    """Returns a trace in which ranks tell each other of its collectives before the first one starts.

    It is the same one if there is none, where this process is alone, and where its job is a pretended one.

    Args:
        trace: a final one.
    """
    import torch.distributed as distributed

    start = time.perf_counter()
    store = find_job_store() if has_collectives(trace.bound_symbols) else None
    if store is None or distributed.get_backend() == "fake":
        return trace
    agreement = CollectiveAgreement(
        find_stretches(trace.bound_symbols), distributed.get_rank(), store, counts_of_process()
    )
    first = next(index for index, symbol in enumerate(trace.bound_symbols) if exchanges(symbol))
    symbols = list(trace.bound_symbols)
    symbols.insert(first, make_symbol("agree_on_collectives", agreement, None).bind(output=None))
    return derive(trace, symbols, "Collectives told to other ranks by fusioncache", start)
