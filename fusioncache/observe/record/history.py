"""What happened to each region, stream and executable of a run, one by one, as long as there is room."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fusioncache.observe.record.observations import ChoiceRecord, CompileRecord, RegionRecord, Source
from fusioncache.observe.record.placements import PlacementRecord
from fusioncache.process import forks
from fusioncache.process.forks import LruMap

MOST_OBSERVATIONS = 20_000
"""How many regions are kept, how many streams, and how many executables."""


@dataclass(frozen=True, slots=True)
class Observations:
    """Observations by their numbers, which count those of one kind from 0. One that changes keeps its number.

    Attributes:
        regions: of all traces, a trace at a time.
        choices: for each residual stream.
        placements: of the collectives of each trace that has some.
        compiles: executables compiled or loaded.
    """

    regions: Mapping[int, RegionRecord]
    choices: Mapping[int, ChoiceRecord]
    placements: Mapping[int, PlacementRecord]
    compiles: Mapping[int, CompileRecord]

    def count(self) -> int:
        """Returns how many there are."""
        return sum(map(len, (self.regions, self.choices, self.placements, self.compiles)))


class _Series[T]:
    """Observations of one kind, and the numbers of those that are new or changed since they were last taken."""

    __slots__ = ("changed", "items")

    def __init__(self) -> None:
        self.items: list[T] = []
        self.changed: set[int] = set()

    def add(self, item: T) -> None:
        self.items.append(item)
        self.changed.add(len(self.items) - 1)

    def change(self, number: int, item: T) -> None:
        self.items[number] = item
        self.changed.add(number)

    def read(self) -> dict[int, T]:
        return dict(enumerate(self.items))

    def take_changes(self) -> dict[int, T]:
        numbers, self.changed = sorted(self.changed), set()
        return {number: self.items[number] for number in numbers}


_Kind = tuple[str | None, tuple[int, ...]]
"""A template's digest and arities: regions that share these share what is learned when they are called."""


class History:
    """Collects observations, on any thread. A cache has one, which all the transforms that use the cache share."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._traces = 0
        self._models: dict[str, None] = {}
        self._regions: _Series[RegionRecord] = _Series()
        self._numbers: dict[_Kind, list[int]] = defaultdict(list)
        self._numbers_of_trace: dict[int, list[int]] = defaultdict(list)
        self._amendments: LruMap[_Kind, dict[str, Any]] = LruMap(MOST_OBSERVATIONS)
        self._choices: _Series[ChoiceRecord] = _Series()
        self._placements: _Series[PlacementRecord] = _Series()
        self._compiles: _Series[CompileRecord] = _Series()
        self._unrecorded = 0
        self._seconds: dict[str, float] = {}

    def begin_trace(self, model: str | None = None) -> int:
        """Counts a forward trace of this model. Returns its number."""
        with self._lock:
            self._traces += 1
            if model is not None:
                self._models[model] = None
            return self._traces - 1

    def add_model(self, model: str | None) -> None:
        """Adds a model that nobody traced, because its program was loaded."""
        if model is not None:
            with self._lock:
                self._models[model] = None

    @property
    def traces(self) -> int:
        """How many forward traces there were."""
        return self._traces

    @property
    def models(self) -> tuple[str, ...]:
        """The models that were traced or loaded, in their order, each once."""
        with self._lock:
            return tuple(self._models)

    @property
    def unrecorded(self) -> int:
        """How many regions, streams and executables there was no room for."""
        return self._unrecorded

    @property
    def changed(self) -> bool:
        """Whether ``take_changes`` would return anything."""
        return any(series.changed for series in (self._regions, self._choices, self._placements, self._compiles))

    def add_regions(self, regions: Iterable[RegionRecord]) -> None:
        """Adds the regions of a trace, with what became of them."""
        with self._lock:
            for region in regions:
                kind = (region.digest, region.arities)
                if self._add(self._regions, replace(region, **self._amendments.get(kind) or {})):
                    number = len(self._regions.items) - 1
                    self._numbers[kind].append(number)
                    self._numbers_of_trace[region.trace_number].append(number)

    def find_regions(self, trace_number: int) -> tuple[RegionRecord, ...]:
        """Returns the regions of a forward trace and its backward trace, by the number of both."""
        with self._lock:
            return tuple(self._regions.items[number] for number in self._numbers_of_trace.get(trace_number, ()))

    def find_source(self, digest: str, arities: tuple[int, ...]) -> Source:
        """Returns where the first region of this template with these arities comes from, as far as that is known."""
        with self._lock:
            numbers = self._numbers.get((digest, arities))
            return self._regions.items[numbers[0]].source if numbers else Source()

    def find_choices(self, trace_number: int) -> tuple[ChoiceRecord, ...]:
        """Returns what was chosen for the streams of a forward trace and its backward trace."""
        with self._lock:
            return tuple(choice for choice in self._choices.items if choice.trace_number == trace_number)

    def find_placements(self, trace_number: int) -> tuple[PlacementRecord, ...]:
        """Returns where the collectives of a forward trace and its backward trace are."""
        with self._lock:
            return tuple(one for one in self._placements.items if one.trace_number == trace_number)

    def add_placement(self, placement: PlacementRecord) -> None:
        """Adds where the collectives of a trace are."""
        with self._lock:
            self._add(self._placements, placement)

    def add_choice(self, choice: ChoiceRecord) -> None:
        """Adds what was chosen for a stream."""
        with self._lock:
            self._add(self._choices, choice)

    def add_compile(self, compile_: CompileRecord) -> None:
        """Adds an executable that was compiled or loaded."""
        with self._lock:
            self._add(self._compiles, compile_)

    def amend_regions(self, digest: str, arities: tuple[int, ...], **fields: Any) -> None:
        """Sets fields of all regions of this template with these arities, of earlier ones and of later ones."""
        kind = (digest, arities)
        with self._lock:
            self._amendments.get_or_make(kind, dict)[0].update(fields)
            for number in self._numbers.get(kind, ()):
                self._regions.change(number, replace(self._regions.items[number], **fields))

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Adds seconds to a phase of ``Phases``."""
        with self._lock:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def read_seconds(self) -> dict[str, float]:
        """Returns the seconds of each phase that there was."""
        with self._lock:
            return dict(self._seconds)

    def read(self) -> Observations:
        """Returns all observations up to now."""
        with self._lock:
            regions, choices = self._regions.read(), self._choices.read()
            return Observations(regions, choices, self._placements.read(), self._compiles.read())

    def take_changes(self) -> Observations:
        """Returns what is new or changed since the last call."""
        with self._lock:
            regions, choices = self._regions.take_changes(), self._choices.take_changes()
            placements, compiles = self._placements.take_changes(), self._compiles.take_changes()
            return Observations(regions, choices, placements, compiles)

    def _add[T](self, series: _Series[T], item: T) -> bool:
        room = len(series.items) < MOST_OBSERVATIONS
        if room:
            series.add(item)
        else:
            self._unrecorded += 1
        return room
