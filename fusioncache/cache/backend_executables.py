"""The executables that a backend makes under the settings of the moment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fusioncache.backends.api import Backend, NotGeneral, Run
from fusioncache.backends.torch_settings import read_torch_settings
from fusioncache.cache.cache import Cache
from fusioncache.cache.executable import Builder, Executable, OnBuild, layouts_of
from fusioncache.cache.general_executable import GeneralBuilder, ServedGeneral
from fusioncache.cache.generals import FoundGeneral, check_general
from fusioncache.cache.persistence import PersistentBuilder
from fusioncache.cache.reuse import OFTEN, Order, replace_if_reused
from fusioncache.cache.sizes import Generation, Sizes
from fusioncache.ir import Graph, Instance
from fusioncache.record.ledger import Ledger
from fusioncache.template.general_region import in_order_of_template

logger = logging.getLogger("fusioncache")


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks for the function of a graph.

    Attributes:
        on_build: is told of the function, if it had to be compiled or loaded.
        on_general: is told which function for any sizes serves the graph.
        on_own: is told that one for its own sizes, which others compiled, takes that one's place.
        generation: the program that the region is of, if it is known.
        instance: the region that asks, if it may be another one than the first.
    """

    on_build: OnBuild
    on_general: Callable[[ServedGeneral], None]
    on_own: Callable[[], None]
    generation: Generation | None = None
    instance: Instance | None = None


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
        sizes: which regions that differ only in sizes share a compilation.

    Attributes:
        backend: the same.
        ledger: the same.
        options: the same.
    """

    def __init__(
        self,
        backend: Backend,
        cache: Cache,
        ledger: Ledger,
        options: Mapping[str, Any] = MappingProxyType({}),
        sizes: Sizes = Sizes.STATIC,
    ):
        self.backend = backend
        self.ledger = ledger
        self.options = options
        self._cache = cache
        self._sizes = sizes

    def executable(self, graph: Graph, instance: Instance | None = None) -> Executable:
        """Returns the executable for a graph without parameters. A new one is to be compiled now, from the instance.

        Raises:
            Bypass: if what is compiled now may not be shared.
        """
        environment = self.backend.environment()
        return self._cache.executable(
            graph, environment, lambda: Executable(graph, self.builder(environment), instance)
        )

    def run_for(self, graph: Graph, args: Sequence[Any], asking: Asking) -> Run:
        """Returns the function of a graph without parameters for arguments of this layout.

        Of a graph that is known with other sizes, it is the one that was compiled for its own or that is in the store,
        or else one for any sizes. Of others, and where there is none, it is compiled.

        Raises:
            Bypass: if what is compiled now may not be shared.
            Exception: whatever the backend raises.
        """
        executable = self.executable(graph, asking.instance)
        run = None if self._sizes is Sizes.STATIC else self._find_general(executable, args, asking)
        return run or executable.run_for(args, asking.on_build, asking.instance)

    def expects_general(self, graph: Graph, instance: Instance | None, generation: Generation | None) -> bool:
        """Tells whether the function of a graph is likely to be one for any sizes."""
        if self._sizes is Sizes.STATIC or generation is None or not self.backend.generalizes:
            return False
        region = in_order_of_template(instance) if instance else graph
        return self._cache.generals.expects(region, generation, self._sizes, self._general_builder())

    def _find_general(self, executable: Executable, args: Sequence[Any], asking: Asking) -> Run | None:
        """Returns what need not be compiled for a graph that is known with other sizes; None if there is nothing."""
        if asking.generation is None:
            return None
        region = in_order_of_template(executable.source_for(args, asking.instance))
        found = self._cache.generals.find(region, asking.generation, self._sizes, self._general_builder())
        if found is None:
            return None
        kept = executable.find_for(args, asking.on_build, asking.instance) if self.backend.generalizes else None
        if kept is not None:
            return kept
        run = self._run_general(found, region, executable, args, asking)
        if run is not None:
            executable.add_source(found.executable.family.general.graph)
        return run

    def _run_general(
        self, found: FoundGeneral, region: Graph, executable: Executable, args: Sequence[Any], asking: Asking
    ) -> Run | None:
        """Returns a function for any sizes that is right for a region; None if there is none."""
        try:
            check_general(region)
            served = found.executable.serve(args, found.values)
        except NotGeneral as refusal:
            logger.info("compiled for its own sizes: %s", refusal)
            self.ledger.count_own_sizes(str(refusal))
            return None
        asking.on_general(served)
        order = self._order_own(found, served, executable, args, asking)
        return served.run if order is None else replace_if_reused(served.run, order)

    def _order_own(
        self, found: FoundGeneral, served: ServedGeneral, executable: Executable, args: Sequence[Any], asking: Asking
    ) -> Order | None:
        """Returns how a region comes by a function for its own sizes without a compile here; None if it does not."""
        helpers = self._cache.helpers
        ask = executable.foresee(layouts_of(args), asking.instance) if helpers else None
        if helpers is None or ask is None:
            return None

        def place() -> bool:
            if not found.executable.own.take():
                return False
            self.ledger.count_handed_over(helpers.hand_over([ask]))
            return True

        def fetch(args: Sequence[Any]) -> Run | None:
            helpers.wait_for(ask.key)
            run = executable.find_for(args, asking.on_build, asking.instance)
            if run is not None:
                asking.on_own()
            return run

        after = 1 if served.built.key is None else OFTEN  # what later processes cannot load
        return Order(place, lambda: helpers.is_done(ask.key), fetch, after)

    def _general_builder(self) -> GeneralBuilder:
        return GeneralBuilder(self.backend, self._cache.store, self.ledger.count_unkept)

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
