"""Counts events as they happen, on any thread."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from fusioncache.ir import Template
from fusioncache.observe.record.accounts import Account, Counts, ProgramCounts
from fusioncache.observe.record.events import CompileEvent, CompileObserver, EventPublisher
from fusioncache.observe.record.graph_counts import GraphCounts
from fusioncache.observe.record.history import History
from fusioncache.observe.record.observations import CompileRecord, Phases
from fusioncache.observe.record.savings import Alone
from fusioncache.observe.record.stats import PROGRAM_RECORD, AllTemplates, Stats, TemplateStats
from fusioncache.process import forks
from fusioncache.process.forks import LruMap

MOST_TEMPLATES = 4096
"""Of how many templates the counts are kept apart: those for which something was counted last. All are in ``Stats``."""


class Ledger:
    """The running counts behind ``Stats``. Each event costs the same, and so do the counts, however many there were.

    Args:
        parent: every event is also entered there.
        events: publishes every event, if there is no parent.

    Attributes:
        history: what happened one by one; the parent's, if there is one.
        graphs: counts what is captured in CUDA graphs.
        observers: are told of each function that is compiled or loaded, here or in a ledger whose parent this is.
    """

    def __init__(self, parent: Ledger | None = None, events: EventPublisher | None = None):
        self._parent = parent
        self._events = events or EventPublisher()
        self.history: History = parent.history if parent else History()
        self.observers: list[CompileObserver] = []
        self.graphs: GraphCounts = GraphCounts(parent.graphs if parent else None)
        self._lock = forks.lock()
        self._accounts: LruMap[str, Account] = LruMap(MOST_TEMPLATES)
        self._seen = 0
        self._total = Counts()
        self._templates = 0
        self._bypasses: Counter[str] = Counter()
        self._unkept: Counter[str] = Counter()
        self._own_sizes: Counter[str] = Counter()
        self._taken_out: Counter[str] = Counter()
        self._bypassed_regions = self._verified = self._verify_compiles = 0
        self._handed_over = self._helped = 0
        self._generalizations = self._general_hits = self._reused_sizes = 0
        self._programs = ProgramCounts()
        self._start_seconds: dict[str, float] = {}
        self._canonicalize_seconds = self._plan_seconds = self._saved_seconds = self._verify_compile_seconds = 0.0

    def count_region(self, template: Template, arities: tuple[int, ...], *, hit: bool) -> None:
        """Counts a region that has this template."""
        with self._lock:
            account = self._add(template, regions=1, hits=int(hit))
            account.arities.add(arities)
            self._templates += account.regions == 1
        if self._parent:
            self._parent.count_region(template, arities, hit=hit)
        else:
            self._events.publish("hit" if hit else "miss", template, arities=arities)

    def count_bypass(self, reason: str, template: Template | None = None, *, region: bool = True) -> bool:
        """Counts a region that is left as Thunder made it.

        Args:
            reason: why.
            template: the one that it was counted as having before, if it was.
            region: False if it is no region but a residual stream, whose regions are counted by themselves, or a trace.

        Returns:
            Whether this is the first time for this reason.
        """
        with self._lock:
            self._bypasses[reason] += 1
            self._bypassed_regions += region and template is None
            first = self._bypasses[reason] == 1
        if self._parent:
            self._parent.count_bypass(reason, template, region=region)
        else:
            self._events.publish("bypass", template, reason=reason)
        return first

    def tell(self, template: Template, event: CompileEvent) -> None:
        """Counts a function that was compiled or loaded for a template, and tells the observers."""
        if event.loaded:
            self.count_load(template, event.seconds, event.compile_seconds, event.alone)
            if event.helped:
                self.count_helped()
        else:
            self.count_compile(template, event.seconds, event.alone)
        ledger: Ledger | None = self
        while ledger is not None:
            for observer in ledger.observers:
                observer(event)
            ledger = ledger._parent

    def count_compile(self, template: Template, seconds: float, alone: Alone | None = None) -> None:
        """Counts something that the backend compiled for this template.

        Args:
            template: it.
            seconds: that compiling took, without the compiler's start.
            alone: what Thunder alone spends on the regions that it serves; None for the same, each time.
        """
        alone = alone or Alone(seconds, seconds)
        with self._lock:
            spared = {"first_seconds": alone.first, "again_seconds": alone.again}
            self._add(template, compiles=1, compile_seconds=seconds, **spared)
        if self._parent:
            self._parent.count_compile(template, seconds, alone)
        else:
            self._add_compile(template, seconds, seconds, loaded=False)

    def count_start(self, title: str, seconds: float) -> None:
        """Counts the one-time start of a compiler in this process, by its title."""
        with self._lock:
            self._start_seconds[title] = self._start_seconds.get(title, 0.0) + seconds
        if self._parent:
            self._parent.count_start(title, seconds)

    def count_handed_over(self, number: int) -> None:
        """Counts what processes beside this one are to compile for it."""
        with self._lock:
            self._handed_over += number
        if self._parent:
            self._parent.count_handed_over(number)

    def count_helped(self) -> None:
        """Counts what was loaded because such a process had compiled it."""
        with self._lock:
            self._helped += 1
        if self._parent:
            self._parent.count_helped()

    def count_load(
        self, template: Template, seconds: float, compile_seconds: float = 0.0, alone: Alone | None = None
    ) -> None:
        """Counts something that was loaded from the store for this template.

        Args:
            template: it.
            seconds: that loading took.
            compile_seconds: that compiling it took, where it was compiled.
            alone: what Thunder alone spends on the regions that it serves; None for ``compile_seconds``, each time.
        """
        alone = alone or Alone(compile_seconds, compile_seconds)
        with self._lock:
            spared = {"first_seconds": alone.first, "again_seconds": alone.again}
            self._add(template, loads=1, load_seconds=seconds, loaded_compile_seconds=compile_seconds, **spared)
        if self._parent:
            self._parent.count_load(template, seconds, compile_seconds, alone)
        else:
            self._add_compile(template, seconds, compile_seconds, loaded=True)

    def count_generalization(self) -> None:
        """Counts something that was compiled for any sizes."""
        with self._lock:
            self._generalizations += 1
        if self._parent:
            self._parent.count_generalization()

    def count_general_hit(self, template: Template, alone: Alone | None = None) -> None:
        """Counts a graph of this template that needs no compile, because what was compiled for any sizes serves it.

        Args:
            template: it.
            alone: what Thunder alone spends on such a graph, if what serves it was for another template.
        """
        alone = alone or Alone(0.0, 0.0)
        with self._lock:
            self._general_hits += 1
            spared = {"first_seconds": alone.first, "again_seconds": alone.again}
            self._add(template, general_seconds=alone.first, **spared)
        if self._parent:
            self._parent.count_general_hit(template, alone)

    def count_reused_sizes(self) -> None:
        """Counts a graph that got a function for its own sizes because it was called so often."""
        with self._lock:
            self._reused_sizes += 1
        if self._parent:
            self._parent.count_reused_sizes()

    def count_own_sizes(self, reason: str) -> None:
        """Counts a graph that is compiled for its own sizes although it is known with others."""
        with self._lock:
            self._own_sizes[reason] += 1
        if self._parent:
            self._parent.count_own_sizes(reason)

    def count_taken_out(self, taken: Mapping[str, int]) -> None:
        """Counts what a final trace is without, by what it was."""
        with self._lock:
            self._taken_out.update(taken)
        if self._parent:
            self._parent.count_taken_out(taken)

    def count_unkept(self, reason: str) -> None:
        """Counts something that was compiled and could not be stored."""
        with self._lock:
            self._unkept[reason] += 1
        if self._parent:
            self._parent.count_unkept(reason)
        else:
            self._events.publish("unkept", reason=reason)

    def count_program_loaded(self, model: str | None, seconds: float, made_seconds: float) -> None:
        """Counts a program that came from the store.

        Args:
            model: class of the module, or name of the function, that it is for.
            seconds: that it took, those of ``add_program_seconds`` together.
            made_seconds: that deriving it took, where it was derived.
        """
        with self._lock:
            self._programs.loaded += 1
            self._programs.loaded_seconds += made_seconds
        if self._parent:
            self._parent.count_program_loaded(model, seconds, made_seconds)
        else:
            self.history.add_model(model)
            self._events.publish("program loaded", model=model, seconds=seconds)

    def count_program_made(self, model: str | None) -> None:
        """Counts a program that Thunder derived here and that the store has now."""
        with self._lock:
            self._programs.made += 1
        if self._parent:
            self._parent.count_program_made(model)
        else:
            self._events.publish("program made", model=model)

    def count_program_replayed(self, model: str | None) -> None:
        """Counts a program at another length for which nothing was interpreted."""
        with self._lock:
            self._programs.replayed += 1
        if self._parent:
            self._parent.count_program_replayed(model)
        else:
            self._events.publish("program replayed", model=model)

    def count_program_filled(self, model: str | None) -> None:
        """Counts a program at another length over which no pass of Thunder's went."""
        with self._lock:
            self._programs.filled += 1
        if self._parent:
            self._parent.count_program_filled(model)
        else:
            self._events.publish("program filled", model=model)

    def count_passes_repeated(self, reason: str) -> None:
        """Counts a program over which Thunder's passes went although they had gone over it at other lengths."""
        with self._lock:
            self._programs.passes_repeated[reason] += 1
        if self._parent:
            self._parent.count_passes_repeated(reason)

    def count_program_interpreted(self, reason: str) -> None:
        """Counts a program that was interpreted although others of it were at other lengths."""
        with self._lock:
            self._programs.interpreted[reason] += 1
        if self._parent:
            self._parent.count_program_interpreted(reason)

    def count_program_refused(self, reason: str) -> bool:
        """Counts a program that is not kept, or that was found and is not used. Returns whether the reason is new."""
        with self._lock:
            self._programs.refused[reason] += 1
            first = self._programs.refused[reason] == 1
        if self._parent:
            self._parent.count_program_refused(reason)
        else:
            self._events.publish("program refused", reason=reason)
        return first

    def add_program_seconds(self, part: str, seconds: float) -> None:
        """Adds seconds spent on a program to one of the parts that ``Stats.program_seconds`` has."""
        with self._lock:
            parts = self._programs.seconds
            parts[part] = parts.get(part, 0.0) + seconds
        if self._parent:
            self._parent.add_program_seconds(part, seconds)

    def count_verified(self) -> None:
        """Counts a region that verify mode compared with its template for a layout and found equal."""
        with self._lock:
            self._verified += 1
        if self._parent:
            self._parent.count_verified()

    def count_verify_compile(self, seconds: float) -> None:
        """Counts a region that verify mode compiled on its own."""
        with self._lock:
            self._verify_compiles += 1
            self._verify_compile_seconds += seconds
        if self._parent:
            self._parent.count_verify_compile(seconds)

    def add_plan_seconds(self, seconds: float) -> None:
        """Adds those of the seconds of ``add_canonicalize_seconds`` that planning a trace's streams took."""
        with self._lock:
            self._plan_seconds += seconds
        if self._parent:
            self._parent.add_plan_seconds(seconds)

    def add_canonicalize_seconds(self, seconds: float) -> None:
        """Adds the seconds that planning a trace's streams and turning its regions into templates took."""
        with self._lock:
            self._canonicalize_seconds += seconds
        if self._parent:
            self._parent.add_canonicalize_seconds(seconds)

    def stats(self) -> Stats:
        """Returns the counts now."""
        captures, replays, gradients_copied, not_captured = self.graphs.read()
        with self._lock:
            total = self._total
            return Stats(
                regions=total.regions + self._bypassed_regions,
                templates=self._templates,
                hits=total.hits,
                misses=total.regions - total.hits,
                bypasses=MappingProxyType(dict(self._bypasses)),
                compiles=total.compiles,
                compile_seconds=total.compile_seconds,
                loads=total.loads,
                load_seconds=total.load_seconds,
                loaded_compile_seconds=total.loaded_compile_seconds,
                handed_over=self._handed_over,
                helped=self._helped,
                generalizations=self._generalizations,
                general_hits=self._general_hits,
                general_saved_seconds=total.general_seconds,
                reused_sizes=self._reused_sizes,
                own_sizes=MappingProxyType(dict(self._own_sizes)),
                taken_out=MappingProxyType(dict(self._taken_out)),
                unkept=MappingProxyType(dict(self._unkept)),
                programs_loaded=self._programs.loaded,
                loaded_program_seconds=self._programs.loaded_seconds,
                programs_made=self._programs.made,
                programs_refused=MappingProxyType(dict(self._programs.refused)),
                programs_replayed=self._programs.replayed,
                programs_filled=self._programs.filled,
                passes_repeated=MappingProxyType(dict(self._programs.passes_repeated)),
                programs_interpreted=MappingProxyType(dict(self._programs.interpreted)),
                program_seconds=MappingProxyType(dict(self._programs.seconds)),
                captures=captures,
                graph_replays=replays,
                gradients_copied=gradients_copied,
                not_captured=not_captured,
                start_seconds=MappingProxyType(dict(self._start_seconds)),
                saved_seconds=self._saved_seconds + self._spared_by_programs() - self._canonicalize_seconds,
                canonicalize_seconds=self._canonicalize_seconds,
                verified=self._verified,
                verify_compiles=self._verify_compiles,
                verify_compile_seconds=self._verify_compile_seconds,
            )

    def _spared_by_programs(self) -> float:
        """Returns what loading programs saved, less what keys, lookups and storing took. The lock is held."""
        return self._programs.loaded_seconds - sum(self._programs.seconds.values())

    def templates(self) -> tuple[TemplateStats, ...]:
        """Returns each template's counts now, in the order in which they were first seen."""
        with self._lock:
            return AllTemplates(account.freeze() for account in self._list_accounts())

    def template(self, digest: str) -> TemplateStats | None:
        """Returns one template's counts now; None if nothing was counted for it."""
        with self._lock:
            account = self._accounts.get(digest)
            return account.freeze() if account else None

    def has(self, template: Template) -> bool:
        """Returns whether a region with this template was counted."""
        with self._lock:
            account = self._accounts.get(template.key.digest)
            return account is not None and account.regions > 0

    def take_changed(self) -> tuple[TemplateStats, ...]:
        """Returns the counts of those templates for which something was counted since the last call."""
        with self._lock:
            changed = [account for account in self._list_accounts() if account.is_changed]
            for account in changed:
                account.is_changed = False
            return tuple(account.freeze() for account in changed)

    def phases(self) -> Phases:
        """Returns where the seconds went, up to now."""
        stats = self.stats()
        programs = dict(stats.program_seconds)
        keeping = programs.pop(PROGRAM_RECORD, None)
        with self._lock:
            planning = self._plan_seconds
        return Phases(
            planning=planning,
            canonicalizing=max(stats.canonicalize_seconds - planning, 0.0),
            starting=sum(stats.start_seconds.values()) if stats.start_seconds else None,
            compiling=stats.compile_seconds,
            loading=stats.load_seconds,
            loading_programs=sum(programs.values()) if programs else None,
            keeping_programs=keeping,
            **self.history.read_seconds(),
        )

    def _add_compile(self, template: Template, seconds: float, compile_seconds: float, *, loaded: bool) -> None:
        digest = template.key.digest
        self.history.add_compile(CompileRecord(digest, loaded, time.time() - seconds, seconds, compile_seconds))
        self._events.publish("load" if loaded else "compile", template, seconds=seconds)

    def _add(self, template: Template, **counts: int | float) -> Account:
        digest = template.key.digest
        account, was_seen = self._accounts.get_or_make(digest, lambda: Account(template, self._seen))
        self._seen += not was_seen
        account.add(counts)
        self._total.add(counts)
        self._saved_seconds += account.save(self._cost(account))
        account.is_changed = True
        return account

    def _list_accounts(self) -> list[Account]:
        return sorted(self._accounts.values(), key=lambda account: account.number)

    def _cost(self, account: Account) -> float:
        """Returns what Thunder alone spends on a hit, also where another transform compiled the template."""
        everywhere = self._parent._accounts.get(account.template.key.digest) if self._parent else None
        return max(account.again_seconds, everywhere.again_seconds if everywhere else 0.0)
