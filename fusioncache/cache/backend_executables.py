"""The executables that a backend makes under the settings of the moment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from fusioncache.backends.api import Backend, Run, make_backend
from fusioncache.backends.eager import run_one_by_one
from fusioncache.backends.torch_settings import read_torch_settings
from fusioncache.cache.cache import Cache
from fusioncache.cache.executable import Builder, Executable, OnBuild, layouts_of
from fusioncache.cache.first_calls import FirstCall
from fusioncache.cache.general_executable import GeneralBuilder, ServedGeneral
from fusioncache.cache.generals import FoundGeneral, check_general
from fusioncache.cache.helpers import Ask
from fusioncache.cache.persistence import PersistentBuilder
from fusioncache.cache.rejections import INDUCTOR, OPERATIONS, OWN, Piece, RejectedRegion, run_in_pieces
from fusioncache.cache.reuse import AT_ONCE, MOST, MOST_UNSTORED, OFTEN, SOON, Order, replace_if_reused
from fusioncache.cache.sizes import Generation, Sizes
from fusioncache.ir import Declined, Graph, Instance, Scope, TensorType
from fusioncache.observe.record.ledger import Ledger
from fusioncache.template.general_region import in_order_of_template
from fusioncache.template.skeleton import skeleton_of

logger = logging.getLogger("fusioncache")


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks for the function of a graph without parameters.

    Attributes:
        identity: stands for the graph. Where it is equal, the graphs are.
        graph: writes the graph, which takes longer than to call what is there.
        on_build: is told of the function, if it had to be compiled or loaded.
        on_general: is told which function for any sizes serves the graph.
        on_own: is told that one for its own sizes, which others compiled, takes that one's place.
        on_piece: is told which function for any sizes serves a piece of the graph, if its compiler rejects the whole.
        generation: the program that the region is of, if it is known.
        instance: the region that asks, if it may be another one than the first.
    """

    identity: Hashable
    graph: Callable[[], Graph]
    on_build: OnBuild
    on_general: Callable[[ServedGeneral], None]
    on_own: Callable[[], None]
    on_piece: Callable[[ServedGeneral], None]
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
            Declined: if what is compiled now may not be shared.
        """
        environment = self.backend.environment()
        return self._cache.executable(
            graph, environment, lambda: Executable(graph, self.builder(environment), instance)
        )

    def run_for(self, args: Sequence[Any], asking: Asking) -> Run:
        """Returns the function of a graph without parameters for arguments of this layout.

        Of a graph that is known with other sizes, it is the one that was compiled for its own or that is in the store,
        or else one for any sizes. Where one for any sizes served graphs like it before, that is asked first, as it
        costs next to nothing. Of others, and where there is none, it is compiled.

        Raises:
            Declined: if what is compiled now may not be shared.
            RejectedRegion: if the compiler rejects the graph, or rejected it with other sizes.
            Exception: whatever else the backend raises.
        """
        environment = self.backend.environment()
        first = self._cache.first_calls.find(asking.identity, environment, asking.instance)
        if self._sizes is not Sizes.STATIC:
            run = self._serve_again(args, asking, first, environment)
            run = run or self._find_general(self._executable_of(asking, first), args, asking, first)
            if run is not None:
                return run
        return self._compile(self._executable_of(asking, first), args, asking)

    def _compile(self, executable: Executable, args: Sequence[Any], asking: Asking) -> Run:
        rejections = self._cache.rejections
        if len(rejections) and not executable.is_built:
            rejected = rejections.find(self._name_rejection(executable, args, asking))
            if rejected is not None:
                raise RejectedRegion(rejected.reason, rejected.pieces)
        try:
            return executable.run_for(args, asking.on_build, asking.instance)
        except Exception as error:
            reason = self.backend.find_rejection(error)
            if reason is None:
                raise
            raise RejectedRegion(reason) from error

    def reject_launch(self, asking: Asking, error: Exception) -> RejectedRegion | None:
        """Returns the rejection of a graph whose function failed when it first ran; None if nothing is compiled.

        It lasts if that was the function for the graph's own sizes.
        """
        if not self.backend.compiles:
            return None
        said = str(error).strip().partition("\n")[0]
        first = self._cache.first_calls.find(asking.identity, self.backend.environment(), asking.instance)
        return RejectedRegion(f"{type(error).__name__}: {said}"[:200], lasting=first.is_compiled)

    def run_rejected(
        self, args: Sequence[Any], asking: Asking, rejection: RejectedRegion
    ) -> tuple[Run, tuple[Piece, ...]]:
        """Returns a function that runs a rejected region piece by piece, and the pieces, which the store then has.

        Raises:
            Exception: if there is no way to run it.
        """
        first = self._cache.first_calls.find(asking.identity, self.backend.environment(), asking.instance)
        executable = self._executable_of(asking, first)
        region = in_order_of_template(executable.source_for(args, asking.instance))
        run, pieces = run_in_pieces(region, args, rejection.pieces, partial(self._build_piece, asking))
        known = RejectedRegion(rejection.reason, pieces)
        if rejection.lasting:
            if pieces != rejection.pieces or not rejection.stored:
                executable.reject(args, known, asking.instance)
            self._cache.rejections.get_or_make(self._name_rejection(executable, args, asking), lambda: known)
        return run, pieces

    def _name_rejection(self, executable: Executable, args: Sequence[Any], asking: Asking) -> Hashable:
        """Returns what regions have in common that run in the same pieces: they differ in sizes alone."""
        region = in_order_of_template(executable.source_for(args, asking.instance))
        return skeleton_of(region), *sorted(self.backend.environment().items())

    def _build_piece(self, asking: Asking, graph: Graph, args: Sequence[Any], piece: Piece) -> Run:
        if piece.way == OPERATIONS:
            return run_one_by_one(graph, args)
        if piece.way == OWN:
            inner = replace(asking, identity=graph, graph=lambda: graph, on_general=asking.on_piece, instance=None)
            return self.run_for(args, inner)
        if self.backend.name == INDUCTOR:
            raise ValueError("TorchInductor rejects it already")
        other = BackendExecutables(make_backend(INDUCTOR), self._cache, self.ledger)
        return other.executable(graph).run_for(args, asking.on_build)

    def _executable_of(self, asking: Asking, first: FirstCall) -> Executable:
        """Returns the executable for the graph that is asked for, to be compiled from the region that called first."""
        if first.executable is None:
            first.executable = self.executable(asking.graph(), first.instance)
        return first.executable

    def _serve_again(
        self, args: Sequence[Any], asking: Asking, first: FirstCall, environment: Mapping[str, str]
    ) -> Run | None:
        """Returns what serves a region as it served regions of other sizes; None if that is not known at once.

        Only a region of which nothing was compiled is served so. That it is the first one that called its graph spares
        the question whether the order of operands shows: in either case it is what would be compiled.
        """
        instance, generation = asking.instance, asking.generation
        if instance is None or generation is None or first.is_compiled or first.instance != instance:
            return None
        if not _fit(instance, args):
            return None
        found = self._cache.generals.find_again(instance, generation, environment)
        served = found.executable.serve_at_once(args, found.values) if found else None
        if found is None or served is None:
            return None
        asking.on_general(served)
        return self._replace_if_reused(found, served, args, asking, first)

    def expects_general(self, graph: Graph, instance: Instance | None, generation: Generation | None) -> bool:
        """Tells whether the function of a graph is likely to be one for any sizes."""
        if self._sizes is Sizes.STATIC or generation is None or not self.backend.generalizes:
            return False
        region = in_order_of_template(instance) if instance else graph
        return self._cache.generals.expects(region, generation, self._sizes, self._general_builder())

    def _find_general(
        self, executable: Executable, args: Sequence[Any], asking: Asking, first: FirstCall
    ) -> Run | None:
        """Returns what need not be compiled for a graph that is known with other sizes; None if there is nothing."""
        if asking.generation is None:
            return None
        instance = executable.source_for(args, asking.instance)
        region, builder = in_order_of_template(instance), self._general_builder()
        found = self._cache.generals.find(region, asking.generation, self._sizes, builder)
        if found is None:
            return None
        kept = executable.find_for(args, asking.on_build, asking.instance) if self.backend.generalizes else None
        if kept is not None:
            return kept
        try:
            check_general(region)
            served = found.executable.serve(args, found.values)
        except Declined as refusal:
            refusal.require(Scope.GENERAL)
            logger.info("compiled for one size only: %s", refusal)
            self.ledger.count_own_sizes(str(refusal))
            return None
        self._cache.generals.note_served(instance, builder.environment)
        asking.on_general(served)
        return self._replace_if_reused(found, served, args, asking, first)

    def _replace_if_reused(
        self, found: FoundGeneral, served: ServedGeneral, args: Sequence[Any], asking: Asking, first: FirstCall
    ) -> Run:
        """Returns the function for any sizes, until one for the sizes of these arguments takes its place.

        The region's text is written, and the store asked for it, when the order is placed.
        """
        captures = self.backend.captures_general
        if self._cache.store is None and captures:
            return served.run
        helpers, allowance = self._cache.helpers, found.executable.own
        layouts, asked = layouts_of(args), list[Ask]()
        is_stored = served.built.key is not None
        most = MOST if is_stored else MOST_UNSTORED

        def place() -> bool:
            ask = self._executable_of(asking, first).foresee(layouts, asking.instance)
            if ask is not None and helpers is not None and allowance.take(most):
                asked.append(ask)
                self.ledger.count_handed_over(helpers.hand_over(asked))
            return ask is not None

        def is_done() -> bool:
            return helpers is None or all(helpers.is_done(ask.key) for ask in asked)

        def fetch(args: Sequence[Any]) -> Run | None:
            if helpers is not None and asked:
                helpers.wait_for(asked[0].key)
            run = self._executable_of(asking, first).find_for(args, asking.on_build, asking.instance)
            if run is not None:
                asking.on_own()
            return run

        def build(args: Sequence[Any]) -> Run:
            run = self._executable_of(asking, first).run_for(args, asking.on_build, asking.instance)
            asking.on_own()
            return run

        def build_apart(args: Sequence[Any]) -> Run:
            return self._executable_of(asking, first).build_apart(args, asking.instance)

        at_once = not is_stored and helpers is not None and allowance.is_below(AT_ONCE)
        after = 1 if at_once else OFTEN if is_stored else SOON
        order = Order(place, is_done, fetch, build, build_apart, after, captures)
        return replace_if_reused(served.run, order)

    def _general_builder(self) -> GeneralBuilder:
        return GeneralBuilder(self.backend, self._cache.store, self.ledger.count_unkept, self.ledger.count_start)

    def builder(self, environment: Mapping[str, str]) -> Builder:
        """Returns what builds functions, with the cache's store if the backend has anything to put into it."""
        store = self._cache.store
        if store is None or self.backend.artifact_environment() is None:
            return Builder(self.backend, self.ledger.count_start)
        return PersistentBuilder(
            self.backend,
            store,
            self._cache.ranks,
            environment,
            self.ledger.count_unkept,
            read_torch_settings(),
            helpers=lambda: self._cache.helpers or self._cache.batch,
            on_start=self.ledger.count_start,
        )


def _fit(instance: Instance, args: Sequence[Any]) -> bool:
    """Tells whether arguments have the shapes that they should have: Thunder may be mistaken about what it is given."""
    types = zip(instance.inputs, instance.region.inputs, strict=True)
    return all(not isinstance(type_, TensorType) or args[position].shape == type_.shape for position, type_ in types)
