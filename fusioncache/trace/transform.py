"""The transform that users register."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thunder.core.transform_common import Transform

from fusioncache.backends.api import check_fold
from fusioncache.backends.registry import best_backend, make_backend
from fusioncache.backends.symbols import outputs_of
from fusioncache.cache.cache import Cache
from fusioncache.cache.call import Fallback, TemplateCall
from fusioncache.cache.default import default_cache
from fusioncache.ir import Arithmetic, Binding, Bypass, Instance, Key, Region, Template
from fusioncache.ir.permutation import pick
from fusioncache.process.thunder_version import untried
from fusioncache.process.warning import warn, warn_once
from fusioncache.provenance.misses import Misses, explain_asked
from fusioncache.provenance.watch import Watch, WatchedTrace
from fusioncache.record.ledger import Ledger
from fusioncache.record.stats import Stats
from fusioncache.residual.plans import Choice, ResidualPlan
from fusioncache.template.canonical import canonicalize
from fusioncache.template.instance import instance_of
from fusioncache.template.plan import Arities, Plan, choose_plan
from fusioncache.trace.backend_programs import BackendPrograms
from fusioncache.trace.calls import Compilers
from fusioncache.trace.executors import Origin, origin_of, why_unfused
from fusioncache.trace.region import region_of
from fusioncache.trace.rewrite import Callee, call_of, rewritten
from fusioncache.trace.streams import ResidualOptions, Streams
from fusioncache.tracing import install
from fusioncache.verification.verifier import Site, Verifier, when_asked

logger = logging.getLogger("fusioncache")

_PLANS: Mapping[ResidualPlan | None, Plan] = {ResidualPlan.INLINE: Plan.INLINE, ResidualPlan.FOLD: Plan.FOLD}


@dataclass(frozen=True, slots=True)
class _Found:
    """A region of a trace, with the call that takes its place and how it would have run."""

    position: int
    fusion: Any
    region: Region
    binding: Binding
    instance: Instance
    call: TemplateCall
    maker: Origin


class FusionCache(Transform):
    """Compiles each fusion region's template once.

    Register it with ``thunder.jit(model, transforms=[fusioncache.FusionCache()])``. What it cannot share it leaves as
    Thunder made it, and counts why: everything, where Thunder is of a version that was not tried.

    A region is compiled at the first call with arguments that lie in this way, under the settings that torch and
    TorchInductor have then, and what is compiled is shared under equal settings only. Later calls use it whatever the
    settings are, until Thunder traces again. Where a setting cannot be compared, such as a custom pass of
    TorchInductor's without a ``uuid``, regions stay as Thunder made them.

    Args:
        cache: where templates are kept; by default one cache that the whole process shares.
        backend: ``"nvfuser"``, ``"inductor"``, ``"eager"``, or ``"auto"``: the compiler that the region was made for,
            where there is one, else the best that works here.
        recompute: ``"residual"`` saves no sum of a residual stream for backward that can be rebuilt there from other
            saved values, bit for bit. Outputs and gradients stay the same. Under TorchInductor, which rounds bfloat16
            and float16 only where a kernel stores them, such sums are saved as before.
        residual: how the sums of a residual stream come about that some rematerialization made regions recompute, or
            ``recompute`` does: ``"inline"``, ``"fold"``, ``"carry"``, ``"segmented"``, or ``"auto"``, the least memory
            at a price that is linear in depth.
        memory_budget: with ``"auto"`` and ``"segmented"``: how many bytes of one stream's sums may be kept alive.
        fold: what sums a long chain that is folded: ``"nvfuser"``, kernels of a few fixed widths; ``"triton"``, one
            launch for any number of terms, where it can; ``"auto"``, that where it is faster. The bits are the same.
        fast_tracing: whether to take detours out of Thunder's tracing, which takes most of a first step once compiling
            does not. Traces stay the same. It changes functions of Thunder in the whole process, from now on: it calls
            ``fusioncache.tracing.install()``, and ``fusioncache.tracing.uninstall()`` gives Thunder its own back.
        verify: whether each region is compiled on its own as well, and what its template computes compared with that,
            in its first call for each layout, or with ``"all"`` in every call; a difference raises a
            ``fusioncache.VerificationError``. ``stats()`` counts what was verified. None asks the environment:
            ``FUSIONCACHE_VERIFY`` is 0, 1 or ``all``.
        explain: whether to say of each new template that had to be compiled, on stderr and once it was, which template
            is nearest and which ingredient keeps them apart; those that were loaded are one line. None asks the
            environment: ``FUSIONCACHE_EXPLAIN`` is 0 or 1.

    Raises:
        TypeError: if ``cache`` is no ``fusioncache.Cache``, or ``verify`` or ``explain`` is none of the above.
        ValueError: if the backend is unknown or does not work here, or another option is none of the above.
    """

    def __init__(
        self,
        *,
        cache: Cache | None = None,
        backend: str = "auto",
        recompute: str | None = None,
        residual: str = "auto",
        memory_budget: int | None = None,
        fold: str = "auto",
        fast_tracing: bool = True,
        verify: bool | str | None = None,
        explain: bool | None = None,
    ):
        super().__init__()
        options = ResidualOptions.of(recompute, residual, memory_budget)
        when, explains = when_asked(verify), explain_asked(explain)
        if cache is not None and not isinstance(cache, Cache):
            raise TypeError(f"cache must be a fusioncache.Cache, got {type(cache).__name__}")
        self.cache = default_cache() if cache is None else cache
        self._untried = untried()
        if self._untried:
            warn_once(self._untried)
        elif backend != "auto":
            make_backend(backend)
        self.backend = backend
        check_fold(fold)
        self._fold = fold
        if fast_tracing:
            install()
        self._ledger = Ledger(self.cache.ledger)
        self._calls: defaultdict[Key, list[TemplateCall]] = defaultdict(list)
        self._names: Counter[str] = Counter()
        self._chosen: dict[Any, BackendPrograms] = {}
        self._plan = _PLANS.get(options.plan)
        self._streams = Streams(options)
        self._watch = Watch(self._ledger)
        self._verifier = Verifier(when, self._ledger, self.cache.append) if when else None
        self._misses = Misses(self.cache) if explains else None

    def stats(self) -> Stats:
        """What this transform has done so far."""
        return self._ledger.stats()

    def calls(self) -> tuple[TemplateCall, ...]:
        """The templates that the traces seen so far call: once for each way in which regions write them."""
        return tuple(call for calls in self._calls.values() for call in calls)

    def choices(self) -> tuple[Choice, ...]:
        """How the sums of each residual stream seen so far come about, with what the alternatives would have cost."""
        return tuple(self._streams.choices)

    def transform_trace_post_optimization(self, trace: Any, **kwargs: Any) -> Any:
        """Thunder's hook: called with the forward trace, then with the backward trace."""
        if self._untried:
            return self._left_alone(trace, self._untried)
        watched = self._watch.begin(trace)
        start = time.perf_counter()
        trace = self._streams.rebuilt(trace)
        try:
            trace = self._replanned(trace, watched, start)
            return self._transform(trace, start, watched)
        except Exception as error:
            self._failed("a trace", error)
            return trace
        finally:
            self._watch.end(watched)
            self._ledger.canonicalized(time.perf_counter() - start)
            self.cache.save()

    def _left_alone(self, trace: Any, reason: str) -> Any:
        """The trace as it is. Nothing is asked of it, because nothing is known of it."""
        self._ledger.records.next_trace()
        self._ledger.bypass(reason, region=False)
        self.cache.save()
        return trace

    def _replanned(self, trace: Any, watched: WatchedTrace, start: float) -> Any:
        before = len(self._streams.choices)
        trace = self._streams.replanned(trace, Compilers(self._arithmetic, self._left), self._failed)
        watched.chose(self._streams.choices[before:])
        self._ledger.planned(time.perf_counter() - start)
        return trace

    def _transform(self, trace: Any, start: float, watched: WatchedTrace) -> Any:
        watched.look(trace)
        environments: dict[
            BackendPrograms, Mapping[str, str]
        ] = {}  # those of this trace: torch's settings may change later
        symbols = enumerate(trace.bound_symbols)
        regions = (self._find(position, symbol, watched, environments) for position, symbol in symbols)
        found = [region for region in regions if region is not None]
        if not any(symbol.sym.is_fusion for symbol in trace.bound_symbols):
            self._unfused(watched)
        wanted: dict[Key, set[Arities]] = defaultdict(set)
        for item in found:
            wanted[item.call.template.key].add(item.binding.arities)
        replacements = {}
        for item in found:
            arities, call = item.binding.arities, item.call
            asked, arithmetic = wanted[call.template.key], self._arithmetic(item.fusion)
            plan = choose_plan(call.template.graph, arities, asked, self._plan, arithmetic)
            fallback, instance = _fallback(item), item.instance
            call.allow(arities, plan, fallback, instance)
            watched.planned(item.position, plan)
            replacements[item.position] = call_of(item.fusion, item.binding, self._callee(item, fallback, instance))
        trace = rewritten(trace, replacements, start) if replacements else trace
        watched.rewritten()
        return trace

    def _arithmetic(self, fusion: Any) -> Arithmetic:
        """Of the compiler of a fused call. Of one that stays as Thunder made it nothing is known."""
        try:
            maker = origin_of(fusion)
        except Bypass:
            return Arithmetic(rounds=False, contracts_alike=False)
        return self._choose(maker, fusion).backend.arithmetic(_device(fusion))

    def _left(self, reason: str) -> None:
        """A residual stream, or a sum of one, stays as it is."""
        self._ledger.bypass(reason, region=False)
        logger.info("left alone: %s", reason)

    def _callee(self, item: _Found, fallback: Fallback, instance: Instance) -> Callee:
        if self._verifier is None:
            return item.call
        backend = self._choose(item.maker, item.fusion).backend
        outputs = pick([proxy.name for proxy in outputs_of(item.fusion)], instance.outputs)
        compiles = item.maker.backend or item.fusion.sym.executor.own_backend()
        site = Site(item.fusion, outputs, item.binding, item.call, backend, compiles, fallback, instance)
        return self._verifier.at(site)

    def _find(
        self,
        position: int,
        bound_symbol: Any,
        watched: WatchedTrace,
        environments: dict[BackendPrograms, Mapping[str, str]],
    ) -> _Found | None:
        """The region at this place of a trace, or None if there is none or it stays as it is."""
        if not bound_symbol.sym.is_fusion:
            return None
        try:
            maker = origin_of(bound_symbol)
            region = region_of(bound_symbol)
            canonical = canonicalize(region)
            chosen = self._choose(maker, bound_symbol)
            if chosen not in environments:
                environments[chosen] = chosen.backend.environment()
            template, hit = self.cache.template(canonical.graph, environments[chosen])
            instance, arities = instance_of(region, canonical.binding), canonical.binding.arities
            call = self._call(template, arities, instance, chosen)
        except Bypass as bypass:
            self._ledger.bypass(bypass.reason)
            watched.left(position, bound_symbol, bypass.reason)
            logger.info("%s bypassed: %s", bound_symbol.sym.name, bypass.reason)
            return None
        except Exception as error:
            self._failed(bound_symbol.sym.name, error)
            watched.left(position, bound_symbol, _failure(error))
            return None
        self._ledger.region(call.template, arities, hit=hit)
        watched.found(position, bound_symbol, call.template, arities, hit=hit)
        if self._misses and not hit:
            self._misses.add(call.template, region, bound_symbol, watched.compilation.lines)
        return _Found(position, bound_symbol, region, canonical.binding, instance, call, maker)

    def _unfused(self, watched: WatchedTrace) -> None:
        """The trace has no region. Says why, unless there was nothing to fuse."""
        reason = why_unfused(watched.compilation)
        if reason:
            self._ledger.bypass(reason, region=False)
            warn_once(reason)

    def _called(self, template: Template) -> None:
        """The end of a template's first call for a layout: what it compiled and what it loaded is counted."""
        self.cache.append()
        if self._misses:
            self._misses.called(template)

    def _failed(self, what: str, error: Exception) -> None:
        logger.info("%s failed", what, exc_info=error)
        if self._ledger.bypass(_failure(error)):
            warn(f"{what} stays as Thunder made it: {error!r}")

    def _call(self, template: Template, arities: Arities, instance: Instance, chosen: BackendPrograms) -> TemplateCall:
        """The call of a template for such a region."""
        calls = self._calls[template.key]
        call = next((call for call in calls if call.claim(arities, instance)), None)
        if call is None:
            name = self._new_name(template)
            call = TemplateCall(template, chosen.program, self._ledger, chosen.backend.sum_chain, name, self._called)
            call.claim(arities, instance)
            calls.append(call)
        return call

    def _new_name(self, template: Template) -> str:
        """Returns a name that no call of this transform has: two templates may have one name, as it is cut short."""
        self._names[template.name] += 1
        number = self._names[template.name]
        return template.name if number == 1 else f"{template.name}_{number}"

    def _choose(self, maker: Origin, fusion: Any) -> BackendPrograms:
        name = maker.backend or best_backend(_device(fusion)) if self.backend == "auto" else self.backend
        options = dict(maker.options) if name == maker.backend else {}
        identity = (name, repr(sorted(options.items())))
        if identity not in self._chosen:
            self._chosen[identity] = BackendPrograms(name, options, self._fold, self.cache, self._ledger, self._misses)
        return self._chosen[identity]


def _failure(error: Exception) -> str:
    return f"failed: {type(error).__name__}"


def _fallback(found: _Found) -> Fallback:
    listed = [proxy.name for proxy in found.fusion.flat_proxy_outs]
    defined = [listed.index(proxy.name) for proxy in outputs_of(found.fusion)]
    argument = dict(zip(sorted(found.binding.arguments), found.instance.inputs, strict=True))
    inputs = tuple(map(argument.get, range(len(found.fusion.args))))
    return Fallback(found.maker.call, inputs, pick(defined, found.instance.outputs))


def _device(fusion: Any) -> str:
    devices = {
        proxy.device.type for proxy in [*fusion.flat_proxy_args, *fusion.flat_proxy_outs] if hasattr(proxy, "device")
    }
    return "cuda" if "cuda" in devices else "cpu"
