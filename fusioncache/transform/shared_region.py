"""A region of a trace with the call of its template, and what others must know of the two."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fusioncache.backends.symbols import outputs_of
from fusioncache.cache.backend_executables import BackendExecutables
from fusioncache.cache.call import Fallback, TemplateCall
from fusioncache.cache.sizes import Generation
from fusioncache.ir import Binding, Instance, Key, Region
from fusioncache.ir.permutation import pick
from fusioncache.template.canonical import Canonical
from fusioncache.template.plan import Arities
from fusioncache.transform.executors import Origin
from fusioncache.verification.verifier import Site


@dataclass(frozen=True, slots=True)
class Sharing:
    """What the regions of one trace have in common.

    Attributes:
        environment: returns the ingredients that a backend has now.
        canonicalize: returns the canonical form of a region.
        generation: the program that the trace is of, if that is known.
    """

    environment: Callable[[BackendExecutables], Mapping[str, str]]
    canonicalize: Callable[[Region], Canonical]
    generation: Generation | None


@dataclass(frozen=True, slots=True)
class SharedRegion:
    """A region of a trace, and the call of a template that takes its place.

    Attributes:
        position: in the trace.
        fusion: the region's fused bound symbol.
        origin: the executor that made the region.
        executables: the backend that compiles the template.
        region: the region as it was read.
        binding: says which of the region's values fills which slot of the template.
        instance: the region in the terms of the template.
        call: the call of the template.
    """

    position: int
    fusion: Any
    origin: Origin
    executables: BackendExecutables
    region: Region
    binding: Binding
    instance: Instance
    call: TemplateCall


def arities_by_template(regions: Iterable[SharedRegion]) -> Mapping[Key, set[Arities]]:
    """Returns the arities that regions have, by the key of their template."""
    arities: dict[Key, set[Arities]] = defaultdict(set)
    for region in regions:
        arities[region.call.template.key].add(region.binding.arities)
    return arities


def fallback_of(shared: SharedRegion) -> Fallback:
    """Returns what computes a region where its template cannot: the function that Thunder's executor made of it."""
    listed = [proxy.name for proxy in shared.fusion.flat_proxy_outs]
    defined = [listed.index(proxy.name) for proxy in outputs_of(shared.fusion)]
    argument = dict(zip(sorted(shared.binding.arguments), shared.instance.inputs, strict=True))
    inputs = tuple(map(argument.get, range(len(shared.fusion.args))))
    executor = str(shared.fusion.sym.executor.name)
    return Fallback(shared.origin.call, inputs, pick(defined, shared.instance.outputs), executor)


def site_of(shared: SharedRegion, fallback: Fallback) -> Site:
    """Returns what verify mode must know of a region and of what takes its place."""
    outputs = pick([proxy.name for proxy in outputs_of(shared.fusion)], shared.instance.outputs)
    own_backend = shared.origin.backend or shared.fusion.sym.executor.own_backend()
    backend = shared.executables.backend
    return Site(shared.fusion, outputs, shared.binding, shared.call, backend, own_backend, fallback, shared.instance)
