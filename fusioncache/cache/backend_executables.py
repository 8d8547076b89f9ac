"""The executables that a backend makes under the settings of the moment."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fusioncache.backends.api import Backend
from fusioncache.backends.torch_settings import read_torch_settings
from fusioncache.cache.cache import Cache
from fusioncache.cache.executable import Builder, Executable
from fusioncache.cache.persistence import PersistentBuilder
from fusioncache.ir import Graph, Instance
from fusioncache.record.ledger import Ledger


class BackendExecutables:
    """The executables of a cache that are made with one backend.

    A region is named by the settings with which it was traced, and an executable by those with which it is compiled, at
    the first call for a layout. Mostly these are the same. Where torch's settings were changed in between, what is
    compiled is what Thunder would have compiled then, and it is shared only with what was compiled under the same
    settings.

    Args:
        backend: makes them.
        cache: where they are.
        ledger: counts.
        options: those with which the backend was made for its regions.

    Attributes:
        backend: the same.
        ledger: the same.
        options: the same.
    """

    def __init__(
        self, backend: Backend, cache: Cache, ledger: Ledger, options: Mapping[str, Any] = MappingProxyType({})
    ):
        self.backend = backend
        self.ledger = ledger
        self.options = options
        self._cache = cache

    def executable(self, graph: Graph, instance: Instance | None = None) -> Executable:
        """Returns the executable for a graph without parameters. A new one is to be compiled now, from the instance.

        Raises:
            Bypass: if what is compiled now may not be shared.
        """
        environment = self.backend.environment()
        return self._cache.executable(
            graph, environment, lambda: Executable(graph, self.builder(environment), instance)
        )

    def builder(self, environment: Mapping[str, str]) -> Builder:
        """Returns what builds functions, with the cache's store if the backend has anything to put into it."""
        store = self._cache.store
        if store is None or self.backend.artifact_environment() is None:
            return Builder(self.backend)
        return PersistentBuilder(
            self.backend,
            store,
            self._cache.ranks,
            environment,
            self.ledger.count_unkept,
            read_torch_settings(),
            helpers=lambda: self._cache.helpers,
        )
