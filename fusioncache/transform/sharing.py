"""The core pass: replaces each fusion region of a trace by a call of its template.

A region passes once through these stages:

    fused bound symbol -> ``Region`` -> (``Template``, ``Binding``) -> ``TemplateCall`` -> bound symbol of the call

The call compiles at its first execution: see ``cache/call.py``.
"""

from __future__ import annotations

from functools import cache as remember
from typing import TYPE_CHECKING, Any

from fusioncache.ir import Scope, is_declined
from fusioncache.process.warning import logger, warn_once
from fusioncache.template.canonical import canonicalize
from fusioncache.template.plan import Arities, choose_plan
from fusioncache.template.writer import instance_of
from fusioncache.transform.executors import explain_unfused, origin_of
from fusioncache.transform.passes import TraceContext
from fusioncache.transform.region import plain_region_of, region_of
from fusioncache.transform.rewrite import call_of, replace_symbols
from fusioncache.transform.shared_region import SharedRegion, arities_by_template, fallback_of, site_of
from fusioncache.transform.templates import read_once

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
        found = [self._find_template(position, fusion) for position, fusion in fusions.items()]
        shared = [region for region in found if region is not None]
        arities = arities_by_template(shared)
        calls = {region.position: self._call_of(region, arities[region.call.template.key]) for region in shared}
        for accelerator in self._transform.accelerators:
            accelerator.foresee(trace, shared, self._context)
        trace = replace_symbols(trace, calls) if calls else trace
        self._notes.note_rewritten()
        return trace

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
        misses = self._transform.misses
        if misses and not hit:
            misses.add(template, shared.region, fusion, self._notes.compilation.lines)
        return shared

    def _share_region(self, position: int, fusion: Any) -> tuple[SharedRegion, bool]:
        """Returns a region with its call, and whether the cache already had its template.

        Raises:
            Declined: if the region cannot be shared.
        """
        origin, region = origin_of(fusion), region_of(fusion)
        canonical = self._canonicalize(region)
        binding = canonical.binding
        executables = self._transform.backends.choose(fusion, origin)
        template, hit = self._transform.cache.template(canonical.graph, self._environment(executables))
        instance = instance_of(region, binding, plain_region_of(fusion))
        calls, generation = self._transform.template_calls, self._context.generation
        call = calls.find_call(template, {binding.arities: instance}, executables, generation)
        return SharedRegion(position, fusion, origin, executables, region, binding, instance, call), hit

    def _call_of(self, shared: SharedRegion, all_arities: set[Arities]) -> list[Any]:
        """Returns the bound symbols that replace a region: the call of its template, with verification if enabled."""
        arities, call, instance = shared.binding.arities, shared.call, shared.instance
        arithmetic = self._transform.backends.arithmetic(shared.fusion)
        plan = choose_plan(call.template.graph, arities, all_arities, self._transform.plan, arithmetic)
        fallback, verifier = fallback_of(shared), self._transform.verifier
        call.allow(arities, plan, fallback, instance)
        self._notes.note_plan(shared.position, plan)
        target = verifier.verify(site_of(shared, fallback)) if verifier else call.target
        return call_of(shared.fusion, shared.binding, target, instance.plain or instance.region)

    def _explain_unfused(self) -> None:
        """Reports why the trace has no region, unless there was nothing to fuse."""
        reason = explain_unfused(self._notes.compilation)
        if reason:
            self._ledger.count_bypass(reason, region=False)
            warn_once(reason)
