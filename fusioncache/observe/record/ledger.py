"""Thread-safe counts and observations, and the publication of events.

Every count is a field of ``Stats`` with the same name. The ledger of a transform also counts into that of its cache.

``saved_seconds`` is the time that this process would have spent additionally without fusioncache, on compiling regions
and on deriving programs. The time that fusioncache takes for that is subtracted: loading, keys, canonicalizing, storing
programs. A negative number is a loss. Not included are a compiler's one-time start, which is counted separately because
Thunder alone pays it as well, and faster tracing and faster later steps, because only Thunder could measure its time.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import count
from types import MappingProxyType
from typing import Any

from fusioncache.ir import Template
from fusioncache.observe.record.events import CompileEvent, CompileObserver, EventFile, EventStream, What, publish
from fusioncache.observe.record.observations import Phases, Record, RegionRecord, Source, ThunderCost
from fusioncache.observe.record.stats import PROGRAM_RECORD, AllTemplates, Stats, TemplateStats
from fusioncache.process import forks
from fusioncache.process.forks import LruMap

MOST_TEMPLATES = 4096
"""How many templates have counts of their own, the most recently counted. ``Stats`` includes all templates."""
MOST_OBSERVATIONS = 20_000
"""How many observations of one kind are stored."""

_COUNTED_AS: Mapping[What, str] = MappingProxyType(
    {
        "bypass": "bypasses",
        "unkept": "unkept",
        "program loaded": "programs_loaded",
        "program made": "programs_made",
        "program refused": "programs_refused",
        "program replayed": "programs_replayed",
        "program filled": "programs_filled",
    }
)
"""The field of ``Stats`` that counts an event. A region or an executable counts in several fields."""

_NOTHING: Mapping[str, float] = MappingProxyType(
    {each.name: each.default for each in fields(Stats) if isinstance(each.default, int | float)}
)
"""The numeric fields of ``Stats`` with their initial values."""

_OF_TEMPLATE: Mapping[str, float] = MappingProxyType(
    {each.name: _NOTHING[each.name] for each in fields(TemplateStats) if each.name in _NOTHING}
)
"""Those of them that are also counted for each template."""

_NOTHING_ALONE = ThunderCost(0.0, 0.0)

_Kind = tuple[str | None, tuple[int, ...]]
"""A template's digest and arities. Regions with the same ones share amendments that are made at their calls."""


class History:
    """Collects observations, on any thread. A cache has one history, which all transforms that use the cache share.

    Attributes:
        traces: number of forward traces.
        unrecorded: number of observations that were dropped for lack of room.
        seconds: of each measured phase of ``Phases``.
    """

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._models: dict[str, None] = {}
        self._records: dict[type[Any], list[Any]] = defaultdict(list)
        self._numbers: dict[_Kind, list[int]] = defaultdict(list)
        self._amendments: LruMap[_Kind, dict[str, Any]] = LruMap(MOST_OBSERVATIONS)
        self.traces = self.unrecorded = 0
        self.seconds: dict[str, float] = defaultdict(float)

    def begin_trace(self, model: str | None = None) -> int:
        """Counts a forward trace of this model. Returns its number."""
        with self._lock:
            self.add_model(model)
            self.traces += 1
            return self.traces - 1

    def add_model(self, model: str | None) -> None:
        """Adds a model that was traced, or whose program was loaded."""
        if model is not None:
            with self._lock:
                self._models[model] = None

    @property
    def models(self) -> tuple[str, ...]:
        """The models that were traced or loaded, in order, each once."""
        with self._lock:
            return tuple(self._models)

    def add(self, *records: Record) -> None:
        """Adds observations. Earlier amendments are applied to regions."""
        with self._lock:
            for record in records:
                known = self._records[type(record)]
                if len(known) >= MOST_OBSERVATIONS:
                    self.unrecorded += 1
                    continue
                if isinstance(record, RegionRecord):
                    kind = (record.digest, record.arities)
                    self._numbers[kind].append(len(known))
                    record = replace(record, **self._amendments.get(kind) or {})
                known.append(record)

    def records[T: Record](self, kind: type[T], trace_number: int | None = None) -> tuple[T, ...]:
        """Returns the observations of one kind: all, or those of a forward trace and its backward trace.

        A changed observation keeps its position, but is a new object.
        """
        with self._lock:
            found = self._records.get(kind, ())
            return tuple(each for each in found if trace_number in (None, each.trace_number))

    def find_source(self, digest: str, arities: tuple[int, ...]) -> Source:
        """Returns the source of the first region of this template with these arities, empty if not known."""
        with self._lock:
            numbers = self._numbers.get((digest, arities))
            return self._records[RegionRecord][numbers[0]].source if numbers else Source()

    def amend_regions(self, digest: str, arities: tuple[int, ...], **fields: Any) -> None:
        """Sets fields of all earlier and later regions of this template with these arities."""
        kind = (digest, arities)
        with self._lock:
            self._amendments.get_or_make(kind, dict)[0].update(fields)
            regions = self._records[RegionRecord]
            for number in self._numbers.get(kind, ()):
                regions[number] = replace(regions[number], **fields)

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Adds seconds to a phase of ``Phases``."""
        with self._lock:
            self.seconds[phase] += seconds


@dataclass(slots=True, eq=False)
class _TemplateCounts:
    """The counts of one template, and the seconds that sharing it saved.

    Attributes:
        template: the template.
        number: how many templates were seen before it.
        counts: the template's share of fields of ``Stats``.
        arities: the numbers of residual terms of its regions.
        cost: the seconds that Thunder alone spends on the first regions, and on further ones.
        saved: the seconds saved.
        frozen: a snapshot of the counts; None if they have changed since.
    """

    template: Template
    number: int
    counts: dict[str, Any] = field(default_factory=lambda: defaultdict(int, _OF_TEMPLATE))
    arities: set[tuple[int, ...]] = field(default_factory=set)
    cost: ThunderCost = _NOTHING_ALONE
    saved: float = 0.0
    frozen: TemplateStats | None = None

    def save(self, further: float) -> float:
        """Computes the seconds saved. Returns the increase.

        Args:
            further: the seconds that Thunder alone spends on further regions, one for each executable of the template.
        """
        counts, before = self.counts, self.saved
        repeats, kinds = repeats_of(counts["hits"], len(self.arities), counts["compiles"] + counts["loads"])
        spared = self.cost.first + further / kinds * repeats
        self.saved = spared - counts["compile_seconds"] - counts["load_seconds"]
        return self.saved - before

    def freeze(self) -> TemplateStats:
        """Returns a snapshot of the counts, which is the same object until they change."""
        key, counts = self.template.key, self.counts
        self.frozen = self.frozen or TemplateStats(
            name=self.template.name,
            digest=key.digest,
            ops=len(self.template.graph.ops),
            arities=tuple(sorted(self.arities)),
            **{name: counts[name] for name in _OF_TEMPLATE},
            ingredients=tuple((part.name, part.text) for part in key.ingredients),
        )
        return self.frozen


def repeats_of(hits: int, arities: int, executables: int) -> tuple[int, int]:
    """Returns how many regions repeat a compiled one, and how many kinds of region the executables are for.

    To a compiler, regions of one template with other arities are other regions. If each arity has an executable, the
    first region of each is compiled here too, and saves nothing. If folds serve all arities, each saves a compile.

    Args:
        hits: regions whose template was known.
        arities: number of arities of the template's regions.
        executables: number of executables that were compiled or loaded for the template.
    """
    if arities > 1 and executables >= arities:
        return max(hits - (arities - 1), 0), arities
    return hits, 1


class Ledger:
    """The running counts behind ``Stats``. The cost of an event does not depend on the number of earlier events.

    Args:
        parent: a ledger that counts everything as well.
        log: receives each event, if there is no parent.

    Attributes:
        history: the observations; the parent's, if there is one.
        observers: called with each function that is compiled or loaded, here or in a ledger with this parent.
    """

    def __init__(self, parent: Ledger | None = None, log: EventFile | EventStream | None = None):
        self._lineage: tuple[Ledger, ...] = (self, *(parent._lineage if parent else ()))
        self._lock: threading.RLock = parent._lock if parent else forks.lock()
        self._log: EventFile | EventStream | None = parent._log if parent else log
        self.history: History = parent.history if parent else History()
        self.observers: list[CompileObserver] = []
        self._counts: dict[str, Any] = {each.name: _NOTHING.get(each.name, {}) for each in fields(Stats)}
        self._templates: LruMap[str, _TemplateCounts] = LruMap(MOST_TEMPLATES)
        self._numbers = count()
        self._saved = 0.0

    def count(self, name: str, number: float = 1, *, of: str | None = None) -> bool:
        """Adds a number to a field of ``Stats``.

        Args:
            name: of the field.
            number: the amount.
            of: the reason or part to count, if the field is a mapping.

        Returns:
            True if this is the first time for this reason.
        """
        with self._lock:
            first = of is None or of not in self._counts[name]
            for ledger in self._lineage:
                counts, key = (ledger._counts, name) if of is None else (ledger._counts[name], of)
                counts[key] = counts.get(key, 0) + number
        return first

    def emit(self, what: What, template: Template | None = None, *, reason: str | None = None, **fields: Any) -> bool:
        """Counts an event and publishes it, with these fields of ``Event``.

        Returns:
            True if this is the first time for this reason.
        """
        first = self.count(_COUNTED_AS[what], of=reason)
        publish(self._log, what, template, reason=reason, **fields)
        return first

    def count_region(self, template: Template, arities: tuple[int, ...], *, hit: bool) -> None:
        """Counts a region with this template."""
        self._count_template(template, {"regions": 1, "hits": int(hit), "misses": int(not hit)}, arities=arities)
        publish(self._log, "hit" if hit else "miss", template, arities=arities)

    def count_bypass(self, reason: str, template: Template | None = None, *, region: bool = True) -> bool:
        """Counts a region that is left as Thunder made it.

        Args:
            reason: why.
            template: its template, if it was counted as a hit or a miss before.
            region: False for a trace, and for a residual stream, whose regions are counted separately.

        Returns:
            True if this is the first time for this reason.
        """
        self.count("regions", region and template is None)
        return self.emit("bypass", template, reason=reason)

    def count_build(self, template: Template, event: CompileEvent) -> None:
        """Counts a function that was compiled or loaded for a template, and notifies the observers."""
        compiled = event.compile_seconds if event.loaded else event.seconds
        if event.loaded:
            counts = {"loads": 1, "load_seconds": event.seconds, "loaded_compile_seconds": compiled}
            self.count("helped", event.helped)
        else:
            counts = {"compiles": 1, "compile_seconds": event.seconds}
        self._count_template(template, counts, event.cost or ThunderCost(compiled, compiled))
        publish(self._log, "load" if event.loaded else "compile", template, seconds=event.seconds)
        for observer in [observer for ledger in self._lineage for observer in ledger.observers]:
            observer(event)

    def count_start(self, title: str, seconds: float) -> None:
        """Counts the one-time start of a compiler in this process, by its title."""
        self.count("start_seconds", seconds, of=title)

    def count_unstored(self, reason: str) -> None:
        """Counts a compile whose result could not be stored."""
        self.emit("unkept", reason=reason)

    def count_general_hit(self, template: Template, cost: ThunderCost = _NOTHING_ALONE) -> None:
        """Counts a graph of this template that needs no compile, because a function for any sizes serves it.

        Args:
            template: the template.
            cost: time that Thunder alone spends on such a graph, if the function was compiled for another template.
        """
        self._count_template(template, {"general_hits": 1, "general_saved_seconds": cost.first}, cost)

    def count_program_loaded(self, model: str | None, seconds: float, made_seconds: float) -> None:
        """Counts a program that was loaded from the store.

        Args:
            model: class of the module, or name of the function, of the program.
            seconds: the load time: the sum of ``Stats.program_seconds`` for it.
            made_seconds: the time that deriving it took in the process that stored it.
        """
        self.count("loaded_program_seconds", made_seconds)
        self.history.add_model(model)
        self.emit("program loaded", model=model, seconds=seconds)

    def stats(self) -> Stats:
        """Returns the current counts."""
        with self._lock:
            counts = self._counts
            of = {name: MappingProxyType(dict(each)) for name, each in counts.items() if isinstance(each, dict)}
            spared = counts["loaded_program_seconds"] - sum(counts["program_seconds"].values())
            saved = self._saved + spared - counts["canonicalize_seconds"]
            return Stats(**{**counts, **of, "saved_seconds": saved})

    def templates(self) -> tuple[TemplateStats, ...]:
        """Returns each template's current counts, in the order in which templates were first seen."""
        with self._lock:
            ordered = sorted(self._templates.values(), key=lambda each: each.number)
            return AllTemplates(each.freeze() for each in ordered)

    def template(self, digest: str) -> TemplateStats | None:
        """Returns one template's current counts; None if there are none."""
        with self._lock:
            found = self._templates.get(digest)
            return found.freeze() if found else None

    def has(self, template: Template) -> bool:
        """True if a region with this template was counted."""
        with self._lock:
            found = self._templates.get(template.key.digest)
            return found is not None and found.counts["regions"] > 0

    def phases(self) -> Phases:
        """Returns the seconds of each phase so far."""
        stats, seconds = self.stats(), {"planning": 0.0, **self.history.seconds}
        programs = dict(stats.program_seconds)
        keeping = programs.pop(PROGRAM_RECORD, None)
        return Phases(
            canonicalizing=max(stats.canonicalize_seconds - seconds["planning"], 0.0),
            starting=sum(stats.start_seconds.values()) if stats.start_seconds else None,
            compiling=stats.compile_seconds,
            loading=stats.load_seconds,
            loading_programs=sum(programs.values()) if programs else None,
            keeping_programs=keeping,
            **seconds,
        )

    def _count_template(
        self,
        template: Template,
        counts: Mapping[str, float],
        cost: ThunderCost = _NOTHING_ALONE,
        arities: tuple[int, ...] | None = None,
    ) -> None:
        """Adds to fields of ``Stats`` and to the template's own counts, with the time that Thunder alone spends."""
        with self._lock:
            for ledger, parent in zip(self._lineage, (*self._lineage[1:], None), strict=True):
                found = ledger._find_template(template)
                for name, number in counts.items():
                    found.counts[name] += number
                    ledger._counts[name] += number
                found.cost = ThunderCost(found.cost.first + cost.first, found.cost.further + cost.further)
                # Another transform may have compiled the template.
                everywhere = parent._templates.get(template.key.digest) if parent else None
                ledger._saved += found.save(max(found.cost.further, everywhere.cost.further if everywhere else 0.0))
                found.frozen = None
                if arities is not None:
                    found.arities.add(arities)
                    ledger._counts["templates"] += found.counts["regions"] == 1

    def _find_template(self, template: Template) -> _TemplateCounts:
        digest = template.key.digest
        return self._templates.get_or_make(digest, lambda: _TemplateCounts(template, next(self._numbers)))[0]
