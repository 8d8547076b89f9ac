"""A region of a trace that shares a template, the choice of its backend, and the call that replaces it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fusioncache.backends.api import best_backend, make_backend, problem
from fusioncache.backends.bound_symbols import outputs_of
from fusioncache.cache.backend_executables import BackendExecutables
from fusioncache.cache.cache import Cache
from fusioncache.cache.call import Fallback, TemplateCall
from fusioncache.cache.generals import Sizes
from fusioncache.ir import Arithmetic, Binding, Declined, Instance, Key, Region, Scope
from fusioncache.ir.graph import pick
from fusioncache.observe.record.ledger import Ledger
from fusioncache.template.plan import Arities
from fusioncache.transform.executors import Origin, origin_of
from fusioncache.verification.verifier import Site


class RegionBackends:
    """The backends of one transform's regions, one for each set of executor options.

    Args:
        name: the backend that the user selected, or ``"auto"``.
        cache: has the executables.
        ledger: counts.
        sizes: which regions that differ only in sizes share a compilation.
    """

    def __init__(self, name: str, cache: Cache, ledger: Ledger, sizes: Sizes = Sizes.STATIC):
        self._name, self._sizes = name, sizes
        self._cache, self._ledger = cache, ledger
        self._executables: dict[Any, BackendExecutables] = {}

    def choose(self, fusion: Any, origin: Origin) -> BackendExecutables:
        """Returns the backend that compiles a fused call, with its executables."""
        name = origin.backend or best_backend(_device_of(fusion)) if self._name == "auto" else self._name
        return self.find_backend(name, dict(origin.options) if name == origin.backend else {})

    def find_backend(self, name: str, options: Mapping[str, Any]) -> BackendExecutables:
        """Returns a backend with these options, with its executables.

        Raises:
            ValueError: if the backend is unknown or does not work here.
        """
        identity = (name, repr(sorted(options.items())))
        if identity not in self._executables:
            backend = make_backend(name, **options)
            self._executables[identity] = BackendExecutables(backend, self._cache, self._ledger, options, self._sizes)
        return self._executables[identity]

    def arithmetic(self, fusion: Any) -> Arithmetic:
        """Returns the arithmetic of a fused call; the most pessimistic one if the call stays as Thunder made it."""
        try:
            origin = origin_of(fusion)
        except Declined as declined:
            declined.require(Scope.REGION)
            return Arithmetic(rounds=False, contracts_alike=False)
        return self.choose(fusion, origin).backend.arithmetic(_device_of(fusion))


def name_backend(requested: str) -> str:
    """Returns the name of the backend of most regions if the user selects ``requested``.

    Adapts Thunder's nvFuser executor, which makes the regions on a GPU for each backend.
    """
    works = problem("nvfuser", "cuda") is None
    return requested if requested != "auto" else best_backend("cuda" if works else "cpu")


def _device_of(fusion: Any) -> str:
    proxies = [*fusion.flat_proxy_args, *fusion.flat_proxy_outs]
    return "cuda" if any(proxy.device.type == "cuda" for proxy in proxies if hasattr(proxy, "device")) else "cpu"


@dataclass(frozen=True, slots=True)
class SharedRegion:
    """A region of a trace, and the call of a template that replaces it.

    Attributes:
        position: in the trace.
        fusion: the region's fused bound symbol.
        origin: the executor that made the region.
        executables: the backend that compiles the template, with its executables.
        region: the region as it was read.
        binding: maps the region's values to the template's slots.
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
    """Returns the arities of regions, by the key of their template."""
    arities: dict[Key, set[Arities]] = defaultdict(set)
    for region in regions:
        arities[region.call.template.key].add(region.binding.arities)
    return arities


def fallback_of(shared: SharedRegion) -> Fallback:
    """Returns the fallback of a region: the function that Thunder's executor made for it."""
    listed = [proxy.name for proxy in shared.fusion.flat_proxy_outs]
    defined = [listed.index(proxy.name) for proxy in outputs_of(shared.fusion)]
    argument = dict(zip(sorted(shared.binding.arguments), shared.instance.inputs, strict=True))
    inputs = tuple(map(argument.get, range(len(shared.fusion.args))))
    executor = str(shared.fusion.sym.executor.name)
    return Fallback(shared.origin.call, inputs, pick(defined, shared.instance.outputs), executor)


def site_of(shared: SharedRegion, fallback: Fallback) -> Site:
    """Returns the data that verify mode needs of a region and of the call that replaces it."""
    outputs = pick([proxy.name for proxy in outputs_of(shared.fusion)], shared.instance.outputs)
    own_backend = shared.origin.backend or shared.fusion.sym.executor.own_backend()
    backend = shared.executables.backend
    return Site(shared.fusion, outputs, shared.binding, shared.call, backend, own_backend, fallback, shared.instance)
