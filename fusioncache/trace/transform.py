"""The transform that users register."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from thunder.core.transform_common import Transform

from fusioncache.backends.base import Backend, best_backend, make_backend
from fusioncache.cache.cache import Cache
from fusioncache.cache.call import Fallback, TemplateCall, warn_once
from fusioncache.cache.default import default_cache
from fusioncache.cache.ledger import Ledger
from fusioncache.cache.stats import Stats
from fusioncache.ir import Binding, Bypass, Key, Template
from fusioncache.template.canonical import canonicalize
from fusioncache.template.plan import choose_plan
from fusioncache.trace.maker import Maker, maker_of
from fusioncache.trace.region import region_of
from fusioncache.trace.rewrite import call_of, rewritten

logger = logging.getLogger("fusioncache")


@dataclass(frozen=True, slots=True)
class _Found:
    """A region of a trace, with its template and how it would have run."""

    position: int
    fusion: Any
    template: Template
    binding: Binding
    maker: Maker


class FusionCache(Transform):
    """Compiles each fusion region's template once.

    Register it with ``thunder.jit(model, transforms=[fusioncache.FusionCache()])``. What it cannot share it leaves as
    Thunder made it, and counts why.

    Args:
        cache: where templates are kept; by default one cache that the whole process shares.
        backend: ``"nvfuser"``, ``"inductor"``, ``"eager"``, or ``"auto"``: the compiler that the region was made for,
            where there is one, else the best that works here.

    Raises:
        TypeError: if ``cache`` is no ``fusioncache.Cache``.
        ValueError: if the backend is unknown or does not work here.
    """

    def __init__(self, *, cache: Cache | None = None, backend: str = "auto"):
        super().__init__()
        if cache is not None and not isinstance(cache, Cache):
            raise TypeError(f"cache must be a fusioncache.Cache, got {type(cache).__name__}")
        self.cache = default_cache() if cache is None else cache
        if backend != "auto":
            make_backend(backend)
        self.backend = backend
        self._ledger = Ledger(self.cache.ledger)
        self._calls: dict[Key, TemplateCall] = {}
        self._backends: dict[Any, tuple[Backend, Mapping[str, str]]] = {}

    def stats(self) -> Stats:
        """What this transform has done so far."""
        return self._ledger.stats()

    def transform_trace_post_optimization(self, trace: Any, **kwargs: Any) -> Any:
        """Thunder's hook: called with the forward trace, then with the backward trace."""
        start = time.perf_counter()
        found = [region for region in map(self._find, *zip(*enumerate(trace.bound_symbols))) if region]
        wanted: dict[Key, set[tuple[int, ...]]] = defaultdict(set)
        for region in found:
            wanted[region.template.key].add(region.binding.arities)
        replacements = {}
        for region in found:
            call = self._call(region, wanted[region.template.key])
            replacements[region.position] = call_of(region.fusion, region.binding, call)
        new = rewritten(trace, replacements, start) if replacements else trace
        self._ledger.canonicalized(time.perf_counter() - start)
        self.cache.save()
        return new

    def _find(self, position: int, bound_symbol: Any) -> _Found | None:
        """The region at this place of a trace, or None if there is none or it stays as it is."""
        if not bound_symbol.sym.is_fusion:
            return None
        try:
            maker = maker_of(bound_symbol)
            canonical = canonicalize(region_of(bound_symbol))
            _, environment = self._backend(maker, bound_symbol)
            template, hit = self.cache.template(canonical.graph, environment)
            self._check_name(template)
        except Bypass as bypass:
            self._ledger.bypass(bypass.reason)
            logger.info("%s bypassed: %s", bound_symbol.sym.name, bypass.reason)
            return None
        except Exception as error:
            self._ledger.bypass(f"failed: {type(error).__name__}")
            warn_once(f"{bound_symbol.sym.name} stays as Thunder made it: {error!r}")
            return None
        self._ledger.region(template, canonical.binding.arities, hit=hit)
        return _Found(position, bound_symbol, template, canonical.binding, maker)

    def _check_name(self, template: Template) -> None:
        """Two templates under one name would be one function in the trace."""
        for call in self._calls.values():
            if call.template.name == template.name and call.template.key != template.key:
                raise Bypass("two templates of one name")

    def _backend(self, maker: Maker, fusion: Any) -> tuple[Backend, Mapping[str, str]]:
        name = maker.backend or best_backend(_device(fusion)) if self.backend == "auto" else self.backend
        options = maker.options if name == maker.backend else {}
        identity = (name, repr(sorted(options.items())))
        if identity not in self._backends:
            backend = make_backend(name, **options)
            self._backends[identity] = backend, backend.environment()
        return self._backends[identity]

    def _call(self, found: _Found, wanted: set[tuple[int, ...]]) -> TemplateCall:
        template, binding = found.template, found.binding
        call = self._calls.get(template.key)
        if call is None:
            backend, environment = self._backend(found.maker, found.fusion)
            program = partial(self.cache.program, environment=environment, compiler=backend)
            call = self._calls[template.key] = TemplateCall(template, program, self._ledger)
        call.allow(binding.arities, choose_plan(binding.arities, wanted), _fallback(found))
        return call


def _fallback(found: _Found) -> Fallback:
    places = {position: place for place, position in enumerate(found.binding.arguments)}
    inputs = tuple(places.get(position) for position in range(len(found.fusion.args)))
    outputs = tuple(found.binding.outputs.index(slot) for slot in range(len(found.template.graph.outputs)))
    return Fallback(found.maker.call, inputs, outputs)


def _device(fusion: Any) -> str:
    devices = {proxy.device.type for proxy in [*fusion.flat_proxy_args, *fusion.flat_proxy_outs] if hasattr(proxy, "device")}
    return "cuda" if "cuda" in devices else "cpu"
