"""The backend that was chosen for regions, and the programs that it makes for them under the settings of the moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusioncache.backends.registry import make_backend
from fusioncache.backends.torch_settings import torch_settings
from fusioncache.cache.cache import Cache
from fusioncache.cache.program import Program
from fusioncache.ir import Graph, Instance
from fusioncache.provenance.misses import Misses
from fusioncache.record.ledger import Ledger


class BackendPrograms:
    """A backend with one set of options.

    A region is named by the settings with which it was traced, and a program by those with which it is compiled, at the
    first call for a layout. Mostly these are the same. Where torch's settings were changed in between, what is compiled
    is what Thunder would have compiled then, and it is shared only with what was compiled under the same settings.

    Args:
        name: of the backend.
        options: that a region's executor gives to it.
        fold: see ``FusionCache``.
        cache: where programs are.
        ledger: counts.
        misses: explains, if asked to.

    Raises:
        ValueError: if the backend does not work here.

    Attributes:
        backend: the same.
    """

    def __init__(
        self, name: str, options: Mapping[str, Any], fold: str, cache: Cache, ledger: Ledger, misses: Misses | None
    ):
        # How chains are summed is none of what is compiled, and so of no key.
        self.backend = make_backend(name, fold=fold, **options)
        self._cache, self._ledger, self._misses = cache, ledger, misses

    def program(self, graph: Graph, instance: Instance | None) -> Program:
        """The program for a graph without parameters, to be compiled now if it is not there.

        Raises:
            Bypass: if what is compiled now may not be shared.
        """
        backend, environment = self.backend, self.backend.environment()
        builder = self._cache.builder(backend, environment, self._ledger, torch_settings())
        if self._misses:
            builder = self._misses.watched(builder, backend.name)
        return self._cache.program(graph, instance, environment, backend, builder)
