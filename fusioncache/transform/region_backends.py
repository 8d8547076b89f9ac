"""Which backend compiles a region."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusioncache.backends.registry import best_backend, make_backend, problem
from fusioncache.cache.backend_executables import BackendExecutables
from fusioncache.cache.cache import Cache
from fusioncache.cache.sizes import Sizes
from fusioncache.ir import Arithmetic, Declined, Scope
from fusioncache.observe.record.ledger import Ledger
from fusioncache.transform.executors import Origin, origin_of


class RegionBackends:
    """The backends of the regions of one transform, one for each set of options that their executors have.

    Args:
        name: the backend that the user asked for, or ``"auto"``.
        fold: what sums long chains; see ``FusionCache``.
        cache: holds the executables.
        ledger: counts.
        sizes: which regions that differ only in sizes share a compilation.
    """

    def __init__(self, name: str, fold: str, cache: Cache, ledger: Ledger, sizes: Sizes = Sizes.STATIC):
        self._name, self._fold, self._sizes = name, fold, sizes
        self._cache, self._ledger = cache, ledger
        self._executables: dict[Any, BackendExecutables] = {}

    def choose(self, fusion: Any, origin: Origin) -> BackendExecutables:
        """Returns the backend that compiles a fused call, and the executables that it has."""
        name = origin.backend or best_backend(_device_of(fusion)) if self._name == "auto" else self._name
        return self.find(name, dict(origin.options) if name == origin.backend else {})

    def find(self, name: str, options: Mapping[str, Any]) -> BackendExecutables:
        """Returns a backend with these options, and the executables that it has.

        Raises:
            ValueError: if it is unknown or does not work here.
        """
        identity = (name, repr(sorted(options.items())))
        if identity not in self._executables:
            # How chains are summed is none of what is compiled, and so of no key.
            backend = make_backend(name, fold=self._fold, **options)
            self._executables[identity] = BackendExecutables(backend, self._cache, self._ledger, options, self._sizes)
        return self._executables[identity]

    def arithmetic(self, fusion: Any) -> Arithmetic:
        """Returns how a fused call is computed. Nothing is known of a call that stays as Thunder made it."""
        try:
            origin = origin_of(fusion)
        except Declined as declined:
            declined.require(Scope.REGION)
            return Arithmetic(rounds=False, contracts_alike=False)
        return self.choose(fusion, origin).backend.arithmetic(_device_of(fusion))


def name_backend(asked: str) -> str:
    """Returns the name of the backend that most regions have if the user asks for this one."""
    return asked if asked != "auto" else best_backend("cuda" if problem("nvfuser", "cuda") is None else "cpu")


def _device_of(fusion: Any) -> str:
    proxies = [*fusion.flat_proxy_args, *fusion.flat_proxy_outs]
    return "cuda" if any(proxy.device.type == "cuda" for proxy in proxies if hasattr(proxy, "device")) else "cpu"
