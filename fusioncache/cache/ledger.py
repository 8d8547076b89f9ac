"""Counts events as they happen, on any thread."""

from __future__ import annotations

import time
from collections import Counter
from types import MappingProxyType

from fusioncache import forks
from fusioncache.cache.events import Events
from fusioncache.cache.facts import CompileRecord, Phases
from fusioncache.cache.records import Records
from fusioncache.cache.stats import AllTemplates, Stats, TemplateStats
from fusioncache.ir import Template


class _Account:
    __slots__ = ("arities", "compile_seconds", "compiles", "hits", "load_seconds", "loads", "regions", "template")

    def __init__(self, template: Template):
        self.template = template
        self.regions = self.hits = self.compiles = self.loads = 0
        self.compile_seconds = self.load_seconds = 0.0
        self.arities: set[tuple[int, ...]] = set()

    def frozen(self) -> TemplateStats:
        key = self.template.key
        return TemplateStats(
            name=self.template.name,
            digest=key.digest,
            ops=len(self.template.graph.ops),
            regions=self.regions,
            hits=self.hits,
            arities=tuple(sorted(self.arities)),
            compiles=self.compiles,
            compile_seconds=self.compile_seconds,
            loads=self.loads,
            load_seconds=self.load_seconds,
            ingredients=tuple((part.name, part.text) for part in key.ingredients),
        )


class Ledger:
    """The running counts behind ``Stats``.

    Args:
        parent: every event is also entered there.
        events: without a parent: who is told of every event.

    Attributes:
        records: what happened one by one; the parent's, if there is one.
    """

    def __init__(self, parent: Ledger | None = None, events: Events | None = None):
        self._parent = parent
        self._events = events or Events()
        self.records: Records = parent.records if parent else Records()
        self._lock = forks.lock()
        self._accounts: dict[str, _Account] = {}
        self._bypasses: Counter[str] = Counter()
        self._unkept: Counter[str] = Counter()
        self._untouched = 0
        self._canonicalize_seconds = self._plan_seconds = 0.0

    def region(self, template: Template, arities: tuple[int, ...], *, hit: bool) -> None:
        """A region was found to have this template."""
        with self._lock:
            account = self._account(template)
            account.regions += 1
            account.hits += hit
            account.arities.add(arities)
        if self._parent:
            self._parent.region(template, arities, hit=hit)
        else:
            self._events.tell("hit" if hit else "miss", template, arities=arities)

    def bypass(self, reason: str, template: Template | None = None, *, region: bool = True) -> bool:
        """A region is left as Thunder made it.

        Args:
            reason: why.
            template: the one that it was counted as having before, if it was.
            region: False if it is no region but a residual stream, whose regions are counted by themselves, or a trace.

        Returns:
            Whether this is the first time for this reason.
        """
        with self._lock:
            self._bypasses[reason] += 1
            self._untouched += region and template is None
            first = self._bypasses[reason] == 1
        if self._parent:
            self._parent.bypass(reason, template, region=region)
        else:
            self._events.tell("bypass", template, reason=reason)
        return first

    def compiled(self, template: Template, seconds: float) -> None:
        """The backend compiled something for this template."""
        with self._lock:
            account = self._account(template)
            account.compiles += 1
            account.compile_seconds += seconds
        if self._parent:
            self._parent.compiled(template, seconds)
        else:
            self._record(template, seconds, loaded=False)

    def loaded(self, template: Template, seconds: float) -> None:
        """Something was loaded from the store for this template."""
        with self._lock:
            account = self._account(template)
            account.loads += 1
            account.load_seconds += seconds
        if self._parent:
            self._parent.loaded(template, seconds)
        else:
            self._record(template, seconds, loaded=True)

    def unkept(self, reason: str) -> None:
        """What was compiled could not be stored."""
        with self._lock:
            self._unkept[reason] += 1
        if self._parent:
            self._parent.unkept(reason)
        else:
            self._events.tell("unkept", reason=reason)

    def planned(self, seconds: float) -> None:
        """Of the seconds that ``canonicalized`` is told: these were for a trace's streams."""
        with self._lock:
            self._plan_seconds += seconds
        if self._parent:
            self._parent.planned(seconds)

    def canonicalized(self, seconds: float) -> None:
        """A trace's streams were planned and its regions turned into templates."""
        with self._lock:
            self._canonicalize_seconds += seconds
        if self._parent:
            self._parent.canonicalized(seconds)

    def stats(self) -> Stats:
        """The counts now."""
        with self._lock:
            accounts = [account.frozen() for account in self._accounts.values() if account.regions]
            compiles = list(self._accounts.values())
            return Stats(
                regions=sum(account.regions for account in accounts) + self._untouched,
                templates=len(accounts),
                hits=sum(account.hits for account in accounts),
                misses=sum(account.regions - account.hits for account in accounts),
                bypasses=MappingProxyType(dict(self._bypasses)),
                compiles=sum(account.compiles for account in compiles),
                compile_seconds=sum(account.compile_seconds for account in compiles),
                loads=sum(account.loads for account in compiles),
                load_seconds=sum(account.load_seconds for account in compiles),
                unkept=MappingProxyType(dict(self._unkept)),
                saved_seconds=sum(account.compile_seconds * account.hits for account in accounts),
                canonicalize_seconds=self._canonicalize_seconds,
            )

    def templates(self) -> tuple[TemplateStats, ...]:
        """Each template's counts now, in the order in which they were first seen."""
        with self._lock:
            return AllTemplates(account.frozen() for account in self._accounts.values())

    def phases(self) -> Phases:
        """Where the seconds went, up to now."""
        stats = self.stats()
        with self._lock:
            planning = self._plan_seconds
        return Phases(
            planning=planning,
            canonicalizing=max(stats.canonicalize_seconds - planning, 0.0),
            compiling=stats.compile_seconds,
            loading=stats.load_seconds,
            **self.records.seconds(),
        )

    def _record(self, template: Template, seconds: float, *, loaded: bool) -> None:
        digest = template.key.digest
        self.records.compiled(CompileRecord(digest, loaded, time.time() - seconds, seconds))
        self._events.tell("load" if loaded else "compile", template, seconds=seconds)

    def _account(self, template: Template) -> _Account:
        return self._accounts.setdefault(template.key.digest, _Account(template))
