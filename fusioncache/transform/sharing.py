"""The core pass: replaces each fusion region of a trace by a call of its template.

A region passes once through these stages:

    fused bound symbol -> ``Region`` -> (``Template``, ``Binding``) -> ``TemplateCall`` -> bound symbol of the call

The call compiles at its first execution: see ``cache/call.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as remember
from typing import Any

from fusioncache.cache.cache import Cache
from fusioncache.cache.generals import Generation
from fusioncache.ir import Region, Scope, is_declined
from fusioncache.observe.record.ledger import Ledger
from fusioncache.process.warning import warn_once
from fusioncache.template.canonical import Canonical, canonicalize
from fusioncache.template.plan import Arities, Plan, choose_plan
from fusioncache.template.writer import instance_of
from fusioncache.transform.executors import explain_unfused, origin_of
from fusioncache.transform.passes import Accelerator, Reports, TraceContext
from fusioncache.transform.provenance.misses import Misses
from fusioncache.transform.provenance.trace_notes import TraceNotes
from fusioncache.transform.region import plain_region_of, region_of
from fusioncache.transform.rewrite import call_of, replace_symbols
from fusioncache.transform.shared_region import RegionBackends, SharedRegion, arities_by_template, fallback_of, site_of
from fusioncache.transform.templates import Environments, TemplateCalls, read_once
from fusioncache.verification.verifier import Verifier

logger = logging.getLogger("fusioncache")


@dataclass(frozen=True, slots=True)
class _Sharing:
    """Values shared by the regions of one trace.

    Attributes:
        environment: returns a backend's current ingredients.
        canonicalize: returns the canonical form of a region.
        generation: the program that the trace belongs to, if known.
        notes: records the outcome of each region.
    """

    environment: Environments
    canonicalize: Callable[[Region], Canonical]
    generation: Generation | None
    notes: TraceNotes


@dataclass(slots=True, eq=False)
class ShareRegions:
    """Replaces fused bound symbols by calls of templates.

    Args:
        cache: has the templates.
        backends: choose the backend of a region.
        calls: the calls of templates in the traces of this transform.
        ledger: counts regions.
        reports: records failures.
        plan: how to sum residual chains; None selects the cheapest plan.
        misses: explain new templates; None if nothing is explained.
        verifier: compares the results of templates with those of regions; None if nothing is compared.
        accelerators: notified of the regions before calls replace them.
    """

    _cache: Cache
    _backends: RegionBackends
    _calls: TemplateCalls
    _ledger: Ledger
    _reports: Reports
    _plan: Plan | None
    _misses: Misses | None
    _verifier: Verifier | None
    _accelerators: tuple[Accelerator, ...]

    def apply(self, trace: Any, context: TraceContext) -> Any:
        """Returns the trace with each region that can be shared replaced by a call of its template."""
        notes = context.notes
        notes.locate_regions(trace)
        fusions = {position: symbol for position, symbol in enumerate(trace.bound_symbols) if symbol.sym.is_fusion}
        if not fusions:
            self._explain_unfused(notes)
        # Equal layers have equal regions, so canonical forms are memoized, but for this trace only: torch's settings
        # may change before the next one.
        sharing = _Sharing(read_once(), remember(canonicalize), context.generation, notes)
        found = [self._find_template(position, fusion, sharing) for position, fusion in fusions.items()]
        shared = [region for region in found if region is not None]
        arities = arities_by_template(shared)
        calls = {region.position: self._call_of(region, arities[region.call.template.key], notes) for region in shared}
        for accelerator in self._accelerators:
            accelerator.foresee(trace, shared, context)
        trace = replace_symbols(trace, calls) if calls else trace
        notes.note_rewritten()
        return trace

    def _find_template(self, position: int, fusion: Any, sharing: _Sharing) -> SharedRegion | None:
        """Returns the region at a position of a trace with its template; None if it stays as Thunder made it."""
        notes = sharing.notes
        try:
            shared, hit = self._share_region(position, fusion, sharing)
        except Exception as error:
            if is_declined(error, Scope.REGION):
                self._ledger.count_bypass(error.reason)
                notes.note_bypass(position, fusion, error.reason)
                logger.info("%s bypassed: %s", fusion.sym.name, error.reason)
            else:
                self._reports.report_failure(fusion.sym.name, error)
                notes.note_bypass(position, fusion, f"failed: {type(error).__name__}")
            return None
        template, arities = shared.call.template, shared.binding.arities
        self._ledger.count_region(template, arities, hit=hit)
        notes.note_template(position, fusion, template, arities, hit=hit)
        if self._misses and not hit:
            self._misses.add(template, shared.region, fusion, notes.compilation.lines)
        return shared

    def _share_region(self, position: int, fusion: Any, sharing: _Sharing) -> tuple[SharedRegion, bool]:
        """Returns a region with its call, and whether the cache already had its template.

        Raises:
            Declined: if the region cannot be shared.
        """
        origin, region = origin_of(fusion), region_of(fusion)
        canonical = sharing.canonicalize(region)
        executables = self._backends.choose(fusion, origin)
        template, hit = self._cache.template(canonical.graph, sharing.environment(executables))
        instance = instance_of(region, canonical.binding, plain_region_of(fusion))
        call = self._calls.find_call(template, {canonical.binding.arities: instance}, executables, sharing.generation)
        return SharedRegion(position, fusion, origin, executables, region, canonical.binding, instance, call), hit

    def _call_of(self, shared: SharedRegion, all_arities: set[Arities], notes: TraceNotes) -> list[Any]:
        """Returns the bound symbols that replace a region: the call of its template, with verification if enabled."""
        arities, call = shared.binding.arities, shared.call
        arithmetic = self._backends.arithmetic(shared.fusion)
        plan = choose_plan(call.template.graph, arities, all_arities, self._plan, arithmetic)
        fallback = fallback_of(shared)
        call.allow(arities, plan, fallback, shared.instance)
        notes.note_plan(shared.position, plan)
        target = self._verifier.verify(site_of(shared, fallback)) if self._verifier else call.target
        instance = shared.instance
        return call_of(shared.fusion, shared.binding, target, instance.plain or instance.region)

    def _explain_unfused(self, notes: TraceNotes) -> None:
        """Reports why the trace has no region, unless there was nothing to fuse."""
        reason = explain_unfused(notes.compilation)
        if reason:
            self._ledger.count_bypass(reason, region=False)
            warn_once(reason)
