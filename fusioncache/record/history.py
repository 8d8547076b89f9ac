"""What happened to each region, stream and program of a run, one by one, as long as there is room."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fusioncache.process import forks
from fusioncache.record.observations import ChoiceRecord, CompileRecord, RegionRecord

MOST_RECORDS = 20_000
"""How many regions are kept, how many streams, and how many programs."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Records by their numbers, which count those of one kind from 0. A record that changes keeps its number.

    Attributes:
        regions: of all traces, a trace at a time.
        choices: for each residual stream.
        compiles: programs compiled or loaded.
    """

    regions: Mapping[int, RegionRecord]
    choices: Mapping[int, ChoiceRecord]
    compiles: Mapping[int, CompileRecord]


class _Kept[T]:
    """Records of one kind, and the numbers of those that are new or otherwise since they were last taken."""

    __slots__ = ("changed", "records")

    def __init__(self) -> None:
        self.records: list[T] = []
        self.changed: set[int] = set()

    def add(self, record: T) -> None:
        self.records.append(record)
        self.changed.add(len(self.records) - 1)

    def change(self, number: int, record: T) -> None:
        self.records[number] = record
        self.changed.add(number)

    def all(self) -> dict[int, T]:
        return dict(enumerate(self.records))

    def take(self) -> dict[int, T]:
        numbers, self.changed = sorted(self.changed), set()
        return {number: self.records[number] for number in numbers}


_Kind = tuple[str | None, tuple[int, ...]]
"""A template's digest and arities: regions that share these share what is learned when they are called."""


class Records:
    """Takes down what happens, on any thread. A cache has one, and so have all the transforms that use it."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._traces = 0
        self._models: dict[str, None] = {}
        self._regions: _Kept[RegionRecord] = _Kept()
        self._places: dict[_Kind, list[int]] = defaultdict(list)
        self._learned: dict[_Kind, dict[str, Any]] = defaultdict(dict)
        self._choices: _Kept[ChoiceRecord] = _Kept()
        self._compiles: _Kept[CompileRecord] = _Kept()
        self._unrecorded = 0
        self._seconds: dict[str, float] = {}

    def next_trace(self, model: str | None = None) -> int:
        """The number of the next forward trace, which is one of this model."""
        with self._lock:
            self._traces += 1
            if model is not None:
                self._models[model] = None
            return self._traces - 1

    @property
    def traces(self) -> int:
        """How many forward traces there were."""
        return self._traces

    @property
    def models(self) -> tuple[str, ...]:
        """The models that were traced, in their order, each once."""
        with self._lock:
            return tuple(self._models)

    @property
    def unrecorded(self) -> int:
        """How many regions, streams and programs there was no room for."""
        return self._unrecorded

    @property
    def changed(self) -> bool:
        """Whether there is anything to take."""
        return any(kept.changed for kept in (self._regions, self._choices, self._compiles))

    def regions(self, regions: Iterable[RegionRecord]) -> None:
        """The regions of a trace, with what became of them."""
        with self._lock:
            for region in regions:
                kind = (region.digest, region.arities)
                if self._add(self._regions, replace(region, **self._learned.get(kind, {}))):
                    self._places[kind].append(len(self._regions.records) - 1)

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
            for number in self._places.get(kind, ()):
                self._regions.change(number, replace(self._regions.records[number], **fields))

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
            return Recorded(self._regions.all(), self._choices.all(), self._compiles.all())

    def take(self) -> Recorded:
        """What is new or otherwise since this was last asked for."""
        with self._lock:
            return Recorded(self._regions.take(), self._choices.take(), self._compiles.take())

    def _add[T](self, kept: _Kept[T], record: T) -> bool:
        room = len(kept.records) < MOST_RECORDS
        if room:
            kept.add(record)
        else:
            self._unrecorded += 1
        return room
