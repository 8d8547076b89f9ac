"""The core pass: replaces each fusion region of a trace by a call of its template.

A region passes once through these stages:

    fused bound symbol -> ``Region`` -> (``Template``, ``Binding``) -> ``TemplateCall`` -> bound symbol of the call

The call compiles at its first execution: see ``cache/call.py``.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache as remember
from typing import TYPE_CHECKING, Any

from fusioncache.ir import Declined, Scope, is_declined
from fusioncache.process.warning import logger, warn_once
from fusioncache.template.canonical import canonicalize
from fusioncache.template.plan import Arities, Plan, choose_plan
from fusioncache.template.writer import instance_of
from fusioncache.transform.executors import explain_unfused, origin_of
from fusioncache.transform.passes import TraceContext
from fusioncache.transform.region import plain_region_of, region_of
from fusioncache.transform.rewrite import call_of, replace_symbols
from fusioncache.transform.shared_region import SharedRegion, arities_by_template, fallback_of, site_of
from fusioncache.transform.templates import TemplateCalls, read_once

if TYPE_CHECKING:
    from fusioncache.transform.transform import TemplateTransform


class RegionSharing:
    """Replaces the fused bound symbols of one trace by calls of templates.

    Args:
        transform: the transform of the trace, with all that its regions share with those of other traces.
        context: of the trace.
    """

    def __init__(self, transform: TemplateTransform, context: TraceContext):
        self._transform, self._ledger = transform, transform.ledger
        self._calls = TemplateCalls(lambda *_: None) if context.is_preview else transform.template_calls
        self._context, self._notes = context, context.notes
        # Equal layers have equal regions, so canonical forms are memoized, but for this trace only: torch's settings
        # may change before the next one.
        self._environment, self._canonicalize = read_once(), remember(canonicalize)

    def change(self, trace: Any) -> Any:
        """Returns the trace with each region that can be shared replaced by a call of its template."""
        self._notes.locate_regions(trace)
        fusions = {position: symbol for position, symbol in enumerate(trace.bound_symbols) if symbol.sym.is_fusion}
        if not fusions:
            self._explain_unfused()
        shared = [region for place in fusions.items() if (region := self._find_template(*place)) is not None]
        arities = arities_by_template(shared)
        calls = {region.position: self._call_of(region, arities[region.call.template.key]) for region in shared}
        for accelerator in self._transform.accelerators:
            accelerator.foresee(trace, shared, self._context)
        trace = replace_symbols(trace, calls) if calls else trace
        self._notes.note_rewritten()
        return trace

    def preview(self, trace: Any) -> list[SharedRegion]:
        """Returns the regions of a trace that can be shared. Counts nothing, and adds no template to the cache."""
        shared: list[SharedRegion] = []
        for position, symbol in enumerate(trace.bound_symbols):
            if symbol.sym.is_fusion:
                with suppress(Declined):
                    shared.append(self._share_region(position, symbol)[0])
        arities = arities_by_template(shared)
        for region in shared:
            self._allow(region, arities[region.call.template.key])
        return shared

    def _find_template(self, position: int, fusion: Any) -> SharedRegion | None:
        """Returns the region at a position of the trace with its template; None if it stays as Thunder made it."""
        try:
            shared, hit = self._share_region(position, fusion)
        except Exception as error:
            if is_declined(error, Scope.REGION):
                self._ledger.count_bypass(error.reason)
                self._notes.note_bypass(position, fusion, error.reason)
                logger.info("%s bypassed: %s", fusion.sym.name, error.reason)
            else:
                self._transform.report_failure(fusion.sym.name, error)
                self._notes.note_bypass(position, fusion, f"failed: {type(error).__name__}")
            return None
        template, arities = shared.call.template, shared.binding.arities
        self._ledger.count_region(template, arities, hit=hit)
        self._notes.note_template(position, fusion, template, arities, hit=hit)
        if (misses := self._transform.misses) and not hit:
            misses.add(template, shared.region, fusion, self._notes.compilation.lines)
        return shared

    def _share_region(self, position: int, fusion: Any) -> tuple[SharedRegion, bool]:
        """Returns a region with its call, and whether the cache already had its template.

        Raises:
            Declined: if the region cannot be shared.
        """
        origin, region = origin_of(fusion), region_of(fusion)
        canonical = self._canonicalize(region)
        binding, executables = canonical.binding, self._transform.backends.choose(fusion, origin)
        cache, environment = self._transform.cache, self._environment(executables)
        template, hit = cache.template(canonical.graph, environment, adds=not self._context.is_preview)
        instance = instance_of(region, binding, plain_region_of(fusion))
        call = self._calls.find_call(template, {binding.arities: instance}, executables, self._context.generation)
        return SharedRegion(position, fusion, origin, executables, region, binding, instance, call), hit

    def _call_of(self, shared: SharedRegion, all_arities: set[Arities]) -> list[Any]:
        """Returns the bound symbols that replace a region: the call of its template, with verification if enabled."""
        call, instance, verifier = shared.call, shared.instance, self._transform.verifier
        self._notes.note_plan(shared.position, self._allow(shared, all_arities))
        target = verifier.verify(site_of(shared, fallback_of(shared))) if verifier else call.target
        return call_of(shared.fusion, shared.binding, target, instance.plain or instance.region)

    def _allow(self, shared: SharedRegion, all_arities: set[Arities]) -> Plan:
        """Allows a template to be called for a region; returns how the region's chains are summed."""
        arities, call = shared.binding.arities, shared.call
        arithmetic = self._transform.backends.arithmetic(shared.fusion)
        plan = choose_plan(call.template.graph, arities, all_arities, self._transform.plan, arithmetic)
        call.allow(arities, plan, fallback_of(shared), shared.instance)
        return plan

    def _explain_unfused(self) -> None:
        """Reports why the trace has no region, unless there was nothing to fuse."""
        reason = explain_unfused(self._notes.compilation)
        if reason:
            self._ledger.count_bypass(reason, region=False)
            warn_once(reason)
