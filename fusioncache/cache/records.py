"""What happened to each region, stream and program of a run, one by one, as long as there is room."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fusioncache import forks
from fusioncache.cache.facts import ChoiceRecord, CompileRecord, RegionRecord

MOST_RECORDS = 20_000
"""How many regions are kept, how many streams, and how many programs."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was recorded up to one moment.

    Attributes:
        regions: of all traces, a trace at a time.
        choices: for each residual stream.
        compiles: programs compiled or loaded.
        unrecorded: how many of all these there was no room for.
    """

    regions: tuple[RegionRecord, ...] = ()
    choices: tuple[ChoiceRecord, ...] = ()
    compiles: tuple[CompileRecord, ...] = ()
    unrecorded: int = 0


_Kind = tuple[str | None, tuple[int, ...]]
"""A template's digest and arities: regions that share these share what is learned when they are called."""


class Records:
    """Takes down what happens, on any thread. A cache has one, and so have all the transforms that use it."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._traces = 0
        self._regions: list[RegionRecord] = []
        self._places: dict[_Kind, list[int]] = defaultdict(list)
        self._learned: dict[_Kind, dict[str, Any]] = defaultdict(dict)
        self._choices: list[ChoiceRecord] = []
        self._compiles: list[CompileRecord] = []
        self._unrecorded = 0
        self._seconds: dict[str, float] = {}

    def next_trace(self) -> int:
        """The number of the next forward trace."""
        with self._lock:
            self._traces += 1
            return self._traces - 1

    def regions(self, regions: Iterable[RegionRecord]) -> None:
        """The regions of a trace, with what became of them."""
        with self._lock:
            for region in regions:
                kind = (region.digest, region.arities)
                if self._add(self._regions, replace(region, **self._learned.get(kind, {}))):
                    self._places[kind].append(len(self._regions) - 1)

    def choice(self, choice: ChoiceRecord) -> None:
        """What was chosen for a stream."""
        with self._lock:
            self._add(self._choices, choice)

    def compiled(self, made: CompileRecord) -> None:
        """A program was compiled or loaded."""
        with self._lock:
            self._add(self._compiles, made)

    def learned(self, digest: str, arities: tuple[int, ...], **fields: Any) -> None:
        """Fields of the regions of this template with these arities, earlier ones and later ones, are otherwise."""
        kind = (digest, arities)
        with self._lock:
            self._learned[kind].update(fields)
            for place in self._places.get(kind, ()):
                self._regions[place] = replace(self._regions[place], **fields)

    def spent(self, phase: str, seconds: float) -> None:
        """Seconds of a phase of ``Phases``."""
        with self._lock:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def seconds(self) -> dict[str, float]:
        """The seconds of each phase that there was."""
        with self._lock:
            return dict(self._seconds)

    def now(self) -> Recorded:
        """Everything up to now."""
        with self._lock:
            return Recorded(tuple(self._regions), tuple(self._choices), tuple(self._compiles), self._unrecorded)

    def _add[T](self, records: list[T], record: T) -> bool:
        room = len(records) < MOST_RECORDS
        if room:
            records.append(record)
        else:
            self._unrecorded += 1
        return room
