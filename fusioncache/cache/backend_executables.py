"""The executables that a backend makes under the current settings, and the choice of the function for a call.

nvFuser 0.2.36 cannot compile some regions, which then fail under Thunder alone as well. Half of such a region mostly
compiles. Measured on an H200 (a backward region of ConvNeXt, 62 operations): its halves take 1.1 s to compile and 42 to
59 us to run; one operation after the other takes 0.1 s and 383 to 424 us. Each half is a graph like any other and is
stored like one. The store also has a note that the whole is rejected, so that the next process does not compile it. At
further sizes, also in later processes, the region counts as rejected, and helpers compile its pieces.

From nvFuser's code for any sizes, code for each size is derived at its first call, or before it by a helper: see
``Backend.persist_size``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from fusioncache.backends.api import Backend, Run
from fusioncache.backends.eager import run_one_by_one
from fusioncache.backends.torch_settings import is_out_of_memory, read_torch_settings
from fusioncache.cache.cache import Cache
from fusioncache.cache.executable import Builder, BuiltFunction, Executable, OnBuild, RejectedRegion
from fusioncache.cache.generals import (
    FoundGeneral,
    Generation,
    Piece,
    Rejection,
    ServedGeneral,
    Sizes,
    find_general_obstacle,
)
from fusioncache.cache.peers import StoreRequest
from fusioncache.ir import Declined, Graph, Instance, Scope
from fusioncache.ir.template import ArgumentLayouts, layouts_of
from fusioncache.observe.record.ledger import Ledger
from fusioncache.process.warning import logger
from fusioncache.template.generalization import in_order_of_template
from fusioncache.template.strides import lay_out_alike
from fusioncache.template.writer import GraphPart, cut, take

LEAST_OPERATIONS = 8
"""A rejected piece with fewer operations is not split: its operations run one by one."""


def run_in_pieces(
    region: Graph, args: Sequence[Any], build: Callable[[Graph, Sequence[Any]], Run]
) -> tuple[Run, tuple[Piece, ...]]:
    """Returns a function that runs a rejected region piece by piece, and the pieces.

    Each piece is run once to make the arguments of the next one.

    Args:
        region: without symbolic sizes, random numbers and writes into its inputs.
        args: its first arguments.
        build: returns the function of a piece for these arguments. May raise any exception.

    Raises:
        Exception: the error of an operation that fails when run alone.
    """
    pending, values = deque(_halve(region, 0, len(region.ops))), dict(enumerate(args))
    steps: list[tuple[GraphPart, Run]] = []
    pieces: list[Piece] = []
    while pending:
        start, stop, compiles = pending.popleft()
        part = take(region, start, stop)
        given = [values[number] for number in part.inputs]
        try:
            run = build(part.graph, given) if compiles else run_one_by_one(part.graph)
            results = run(given)
        except Exception as error:
            if not compiles or is_out_of_memory(error):
                raise
            logger.info("operations %d to %d are not compiled", start, stop, exc_info=error)
            pending.extendleft(reversed(_halve(region, start, stop)))
            continue
        values.update(zip(part.outputs, results, strict=True))
        steps.append((part, run))
        pieces.append(Piece(start, stop, compiles, layouts_of(given)))

    def run_all(args: Sequence[Any]) -> Sequence[Any]:
        values = dict(enumerate(args))
        for part, compute in steps:
            values.update(zip(part.outputs, compute([values[number] for number in part.inputs]), strict=True))
        return [values[number] for number in region.outputs]

    return run_all, tuple(pieces)


def _halve(region: Graph, start: int, stop: int) -> list[tuple[int, int, bool]]:
    """Returns the pieces that replace rejected operations: their start and stop, and whether to compile them."""
    place = cut(take(region, start, stop).graph) if stop - start >= LEAST_OPERATIONS else None
    if place is None:
        return [(start, stop, False)]
    return [(start, start + place, True), (start + place, stop, True)]


class OnGeneral(Protocol):
    """Callback with the function for any sizes that serves a graph or a piece of it."""

    def __call__(self, served: ServedGeneral, *, whole: bool = True) -> None:
        """Reports the function; ``whole`` is False for a piece."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A call's request for the function of a graph without parameters.

    Attributes:
        graph: the graph.
        layouts: of the arguments of the call.
        on_build: called with the function, if it had to be compiled or loaded.
        on_general: called with the function for any sizes that serves the graph.
        generation: the program that the region belongs to, if known.
        instance: the region that needs the function, if it may differ from the first.
    """

    graph: Graph
    layouts: ArgumentLayouts
    on_build: OnBuild
    on_general: OnGeneral
    generation: Generation | None = None
    instance: Instance | None = None


@dataclass(slots=True, eq=False)
class BackendExecutables:
    """The executables of a cache that one backend makes.

    A region's name depends on the settings at tracing, an executable's on the settings at compiling, which is the first
    call for a layout. These are mostly equal. If torch's settings were changed in between, the result is what Thunder
    would have compiled then. It is shared only with results compiled under the same settings.

    Args:
        backend: makes the executables.
        cache: stores them.
        ledger: counts.
        options: the options with which the backend was made for its regions.
        sizes: which regions that differ only in sizes share a compilation.

    Attributes:
        backend: as given.
        ledger: as given.
        options: as given.
    """

    backend: Backend
    _cache: Cache
    ledger: Ledger
    options: Mapping[str, Any] = MappingProxyType({})
    _sizes: Sizes = Sizes.STATIC

    def executable(self, graph: Graph, instance: Instance | None = None) -> Executable:
        """Returns the executable of a graph without parameters; a new one compiles ``instance`` under current settings.

        Raises:
            Declined: if results of the current settings may not be shared.
        """
        return self._find_executable(graph, instance, self.backend.environment())

    def _find_executable(self, graph: Graph, instance: Instance | None, environment: Mapping[str, str]) -> Executable:
        return self._cache.executable(
            graph, environment, lambda: Executable(graph, self.builder(environment), instance)
        )

    def builder(self, environment: Mapping[str, str]) -> Builder:
        """Returns a builder of functions that uses the cache's store."""
        return Builder(
            self.backend,
            self._cache.store,
            self._cache.ranks,
            environment,
            self.ledger.count_unstored,
            read_torch_settings(),
            helpers=lambda: self._cache.helpers or self._cache.batch,
            on_start=self.ledger.count_start,
        )

    def run_for(self, args: Sequence[Any], request: BuildRequest) -> Run:
        """Returns the function of a graph without parameters for arguments of this layout.

        A graph that is known with other sizes gets the function compiled for its own sizes, a function for any sizes,
        or one derived from that. Before one of these exists, it gets the stored function for its own sizes. Any other
        graph is compiled, and so is one for which none of these exists.

        Raises:
            Declined: if results of the current settings may not be shared.
            RejectedRegion: if the compiler rejects the graph, or rejected it with other sizes.
            Exception: any other error of the backend.
        """
        environment = self.backend.environment()
        executable = self._find_executable(request.graph, request.instance, environment)
        region = _find_region(executable, request)
        found = self._find_general(region, request.generation, environment)
        if isinstance(found, Rejection) and not executable.is_built:
            raise RejectedRegion(found.reason)
        if isinstance(found, FoundGeneral) and request.generation is not None:
            found.executable.note_layouts(request.layouts)
            run = self._serve_general(executable, region, args, request, found)
            if run is not None:
                return run
        try:
            return executable.run_for(args, request.layouts, request.on_build, request.instance)
        except Exception as error:
            reason = self.backend.find_rejection(error)
            if reason is None:
                raise
            raise RejectedRegion(reason) from error

    def reject_launch(self, request: BuildRequest, error: Exception) -> RejectedRegion | None:
        """Returns the rejection of a graph whose function failed at its first run; None if the backend never compiles.

        The rejection is new if the function was for the graph's own sizes.
        """
        if not self.backend.compiles:
            return None
        said = str(error).strip().partition("\n")[0]
        is_new = self.executable(request.graph, request.instance).is_built
        return RejectedRegion(f"{type(error).__name__}: {said}"[:200], is_new=is_new, of_launch=True)

    def run_rejected(
        self, args: Sequence[Any], request: BuildRequest, rejection: RejectedRegion
    ) -> tuple[Run, tuple[Piece, ...]]:
        """Returns a function that runs a rejected region piece by piece, and the pieces.

        Raises:
            Exception: if there is no way to run it.
        """
        executable = self.executable(request.graph, request.instance)
        piece = replace(request, on_general=partial(request.on_general, whole=False), instance=None)

        def build(graph: Graph, args: Sequence[Any]) -> Run:
            return self.run_for(args, replace(piece, graph=graph, layouts=layouts_of(args)))

        region = _find_region(executable, request)
        run, pieces = run_in_pieces(region, args, build)
        if rejection.is_new:
            executable.reject(request.layouts, rejection, request.instance)
        if not rejection.of_launch and self._sizes is not Sizes.STATIC:
            builder = self.builder(self.backend.environment())
            self._cache.generals.reject(region, Rejection(str(rejection), pieces), builder)
        return run, pieces

    def foresee(
        self, graph: Graph, instance: Instance | None, generation: Generation | None, layouts: ArgumentLayouts
    ) -> list[StoreRequest]:
        """Returns the store requests of a graph's first call with arguments of these layouts.

        There are several if the graph will run in pieces. There are none if they cannot be foreseen, or if a function
        for any sizes will serve the call.

        Args:
            graph: without parameters.
            instance: the region that will call, if known.
            generation: the program that the region belongs to; None for a future one.
            layouts: of the arguments.
        """
        environment = self.backend.environment()
        executable = self._find_executable(graph, instance, environment)
        if executable.is_built:
            return []
        region = in_order_of_template(executable.source_for(layouts, instance))
        found, derives = self._find_general(region, generation, environment), self.backend.derives_sizes
        if isinstance(found, Rejection):
            pieces = (piece for piece in found.pieces if piece.is_compiled)
            return [request for piece in pieces for request in self._foresee_piece(region, piece, generation)]
        if found is not None and self.backend.generalizes and not derives:
            return []
        as_general = found.instance if found is not None and derives and find_general_obstacle(region) is None else None
        expected = [layouts] if found is None else found.executable.correct_layouts(layouts, graph)
        requests = (executable.foresee(each, instance, as_general) for each in expected)
        return [request for request in requests if request is not None]

    def _foresee_piece(self, region: Graph, piece: Piece, generation: Generation | None) -> list[StoreRequest]:
        """Returns the store requests of a piece of a rejected region that is known at other sizes."""
        graph = take(region, piece.start, piece.stop).graph
        layouts = lay_out_alike(piece.layouts, graph)
        return [] if layouts is None else self.foresee(graph, None, generation, layouts)

    def _find_general(
        self, region: Graph, generation: Generation | None, environment: Mapping[str, str]
    ) -> FoundGeneral | Rejection | None:
        """Returns the rejection of a region at its own or other sizes, or the general executable that may serve it.

        With a generation, the region joins its relatives.
        """
        if self._sizes is Sizes.STATIC:
            return None
        return self._cache.generals.find(region, generation, self._sizes, self.builder(environment))

    def _serve_general(
        self, executable: Executable, region: Graph, args: Sequence[Any], request: BuildRequest, found: FoundGeneral
    ) -> Run | None:
        """Returns a stored or general function of a graph known with other sizes; None if it must be compiled."""
        if self.backend.generalizes and (executable.is_built or not found.executable.is_ready(request.layouts)):
            kept = executable.find_for(args, request.layouts, request.on_build, request.instance)
            if kept is not None:
                return kept
        try:
            obstacle = find_general_obstacle(region)
            if obstacle is not None:
                raise Declined(obstacle, Scope.GENERAL)
            if self.backend.derives_sizes:
                note = partial(_note_made, request, found)
                return executable.run_for(args, request.layouts, note, request.instance, found.instance)
            served = found.executable.serve(args, request.layouts, found.values)
        except Declined as refusal:
            refusal.require(Scope.GENERAL, Scope.STORING_NOW)
            logger.info("compiled for one size only: %s", refusal)
            self.ledger.count("own_sizes", of=str(refusal))
            return None
        request.on_general(served)
        return served.run


def _note_made(request: BuildRequest, found: FoundGeneral, executable: Executable, built: BuiltFunction[Run]) -> None:
    """Reports a function that was derived from code for any sizes, or loaded."""
    is_stored = built.loaded and not (built.helped or built.compiled_here)
    is_first = not is_stored and found.executable.note_derived(request.layouts)
    source, is_new = found.executable.family.general.graph, built.loaded or is_first
    request.on_general(ServedGeneral(built.run, built, source, is_new, is_first=is_first))


def _find_region(executable: Executable, request: BuildRequest) -> Graph:
    """Returns the region compiled for a call, with inputs and outputs in the order of its template."""
    return in_order_of_template(executable.source_for(request.layouts, request.instance))
