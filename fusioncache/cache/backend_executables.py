"""The executables that a backend makes under the settings of the moment, and which function serves a call.

nvFuser 0.2.36 cannot compile some regions, which then fail under Thunder alone as well. In half such a region mostly
compiles. Measured on an H200 (a backward region of ConvNeXt, 62 operations): its halves take 1.1 s to compile and 42 to
59 us to run, one operation after the other 0.1 s and 383 to 424 us. Each half is a graph like any other, in the store
as well. The store has that the whole is rejected, so that the next process does not ask the compiler for it again.

Of nvFuser's code for any sizes code for each size is made at its first call, or beside it: see
``Backend.persist_size``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from fusioncache.backends.api import Backend, Run
from fusioncache.backends.eager import run_one_by_one
from fusioncache.backends.torch_settings import is_out_of_memory, read_torch_settings
from fusioncache.cache.cache import Cache
from fusioncache.cache.executable import Builder, BuiltFunction, Executable, OnBuild, RejectedRegion
from fusioncache.cache.generals import FoundGeneral, Generation, ServedGeneral, Sizes, check_general
from fusioncache.cache.peers import Ask
from fusioncache.ir import Declined, Graph, Instance, Scope
from fusioncache.ir.template import ArgumentLayouts, layouts_of
from fusioncache.observe.record.ledger import Ledger
from fusioncache.template.generalization import in_order_of_template
from fusioncache.template.skeleton import skeleton_of
from fusioncache.template.writer import GraphPart, cut, take

logger = logging.getLogger("fusioncache")

LEAST_OPERATIONS = 8
"""A rejected piece with fewer operations is not cut again: they run one by one."""


def run_in_pieces(
    region: Graph, args: Sequence[Any], build: Callable[[Graph, Sequence[Any]], Run]
) -> tuple[Run, tuple[bool, ...]]:
    """Returns a function that runs a rejected region piece by piece, and of each piece whether it is compiled.

    Each piece is run once to make the arguments of the next one.

    Args:
        region: without symbolic sizes, random numbers and writes into its inputs.
        args: its first arguments.
        build: returns the function of a piece for these arguments. Raises whatever goes wrong.

    Raises:
        Exception: what an operation raises by itself.
    """
    pending, values = deque(_halve(region, 0, len(region.ops))), dict(enumerate(args))
    steps: list[tuple[GraphPart, Run]] = []
    compiled: list[bool] = []
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
        compiled.append(compiles)

    def run_all(args: Sequence[Any]) -> Sequence[Any]:
        values = dict(enumerate(args))
        for part, compute in steps:
            values.update(zip(part.outputs, compute([values[number] for number in part.inputs]), strict=True))
        return [values[number] for number in region.outputs]

    return run_all, tuple(compiled)


def _halve(region: Graph, start: int, stop: int) -> list[tuple[int, int, bool]]:
    """Returns what runs in place of rejected operations: where each piece starts and stops, and whether it compiles."""
    place = cut(take(region, start, stop).graph) if stop - start >= LEAST_OPERATIONS else None
    if place is None:
        return [(start, stop, False)]
    return [(start, start + place, True), (start + place, stop, True)]


class OnGeneral(Protocol):
    """Is told which function for any sizes serves a graph, or a piece of it."""

    def __call__(self, served: ServedGeneral, *, whole: bool = True) -> None:
        """Takes the function."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A call that wants the function of a graph without parameters.

    Attributes:
        graph: the graph.
        layouts: of the arguments of the call.
        on_build: is told of the function, if it had to be compiled or loaded.
        on_general: is told which function for any sizes serves the graph.
        generation: the program that the region is of, if it is known.
        instance: the region that asks, if it may be another one than the first.
    """

    graph: Graph
    layouts: ArgumentLayouts
    on_build: OnBuild
    on_general: OnGeneral
    generation: Generation | None = None
    instance: Instance | None = None


@dataclass(slots=True, eq=False)
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

    backend: Backend
    _cache: Cache
    ledger: Ledger
    options: Mapping[str, Any] = MappingProxyType({})
    _sizes: Sizes = Sizes.STATIC

    def executable(self, graph: Graph, instance: Instance | None = None) -> Executable:
        """Returns the executable for a graph without parameters. A new one is to be compiled now, from the instance.

        Raises:
            Declined: if what is compiled now may not be shared.
        """
        return self._find_executable(graph, instance, self.backend.environment())

    def _find_executable(self, graph: Graph, instance: Instance | None, environment: Mapping[str, str]) -> Executable:
        return self._cache.executable(
            graph, environment, lambda: Executable(graph, self.builder(environment), instance)
        )

    def builder(self, environment: Mapping[str, str]) -> Builder:
        """Returns what builds functions, with the cache's store."""
        return Builder(
            self.backend,
            self._cache.store,
            self._cache.ranks,
            environment,
            self.ledger.count_unkept,
            read_torch_settings(),
            helpers=lambda: self._cache.helpers or self._cache.batch,
            on_start=self.ledger.count_start,
        )

    def run_for(self, args: Sequence[Any], asked: BuildRequest) -> Run:
        """Returns the function of a graph without parameters for arguments of this layout.

        Of a graph that is known with other sizes, it is the one that was compiled for its own, or one for any sizes, or
        one that is made of that; before there is one of these, it is the one that the store has for its own. Of others,
        and where there is none, it is compiled.

        Raises:
            Declined: if what is compiled now may not be shared.
            RejectedRegion: if the compiler rejects the graph, or rejected it with other sizes.
            Exception: whatever else the backend raises.
        """
        environment = self.backend.environment()
        executable = self._find_executable(asked.graph, asked.instance, environment)
        if asked.generation is not None:
            region = _find_region(executable, asked)
            found = self._find_general(region, asked.generation, environment)
            run = None if found is None else self._serve_general(executable, region, args, asked, found)
            if run is not None:
                return run
        rejections = self._cache.rejections
        if len(rejections) and not executable.is_built:
            rejected = rejections.get(self._name_rejection(executable, asked))
            if rejected is not None:
                raise RejectedRegion(rejected)
        try:
            return executable.run_for(args, asked.layouts, asked.on_build, asked.instance)
        except Exception as error:
            reason = self.backend.find_rejection(error)
            if reason is None:
                raise
            raise RejectedRegion(reason) from error

    def reject_launch(self, asked: BuildRequest, error: Exception) -> RejectedRegion | None:
        """Returns the rejection of a graph whose function failed when it first ran; None if nothing is compiled.

        It is new if that was the function for the graph's own sizes.
        """
        if not self.backend.compiles:
            return None
        said = str(error).strip().partition("\n")[0]
        is_new = self.executable(asked.graph, asked.instance).is_built
        return RejectedRegion(f"{type(error).__name__}: {said}"[:200], is_new=is_new)

    def run_rejected(
        self, args: Sequence[Any], asked: BuildRequest, rejection: RejectedRegion
    ) -> tuple[Run, tuple[bool, ...]]:
        """Returns a function that runs a rejected region piece by piece, and of each piece whether it is compiled.

        Raises:
            Exception: if there is no way to run it.
        """
        executable = self.executable(asked.graph, asked.instance)
        piece = replace(asked, on_general=partial(asked.on_general, whole=False), instance=None)

        def build(graph: Graph, args: Sequence[Any]) -> Run:
            return self.run_for(args, replace(piece, graph=graph, layouts=layouts_of(args)))

        run, compiled = run_in_pieces(_find_region(executable, asked), args, build)
        if rejection.is_new:
            executable.reject(asked.layouts, rejection, asked.instance)
        name = self._name_rejection(executable, asked)
        self._cache.rejections.get_or_make(name, lambda: str(rejection))
        return run, compiled

    def _name_rejection(self, executable: Executable, asked: BuildRequest) -> Hashable:
        """Returns what regions have in common that are rejected together: they differ in sizes alone."""
        return skeleton_of(_find_region(executable, asked)), *sorted(self.backend.environment().items())

    def foresee(
        self, graph: Graph, instance: Instance | None, generation: Generation | None, layouts: ArgumentLayouts
    ) -> Ask | None:
        """Returns the ask of the first call of a graph with arguments of these layouts.

        None if it asks for nothing, if nothing of it can be foreseen, or if a function for any sizes is to serve it.

        Args:
            graph: without parameters.
            instance: the region that is going to ask, if it is known.
            generation: the program that this is of; None for one to come.
            layouts: of the arguments.
        """
        environment = self.backend.environment()
        executable = self._find_executable(graph, instance, environment)
        if executable.is_built:
            return None
        region = in_order_of_template(executable.source_for(layouts, instance))
        found = self._find_general(region, generation, environment)
        if found is None:
            return executable.foresee(layouts, instance)
        if not self.backend.derives_sizes:
            return None if self.backend.generalizes else executable.foresee(layouts, instance)
        return executable.foresee(layouts, instance, None if refuses_general(region) else found.instance)

    def _find_general(
        self, region: Graph, generation: Generation | None, environment: Mapping[str, str]
    ) -> FoundGeneral | None:
        """Returns the general executable that may serve a region; None if there is none.

        If its program is given, the region joins its relatives.
        """
        if self._sizes is Sizes.STATIC:
            return None
        generals, builder = self._cache.generals, self.builder(environment)
        if generation is None:
            return generals.find(region, builder)
        return generals.join(region, generation, self._sizes, builder)

    def _serve_general(
        self, executable: Executable, region: Graph, args: Sequence[Any], asked: BuildRequest, found: FoundGeneral
    ) -> Run | None:
        """Returns what need not be compiled for a graph that is known with other sizes; None if there is nothing."""
        if self.backend.generalizes and (executable.is_built or not found.executable.is_ready(asked.layouts)):
            kept = executable.find_for(args, asked.layouts, asked.on_build, asked.instance)
            if kept is not None:
                return kept
        try:
            check_general(region)
            if self.backend.derives_sizes:
                note = partial(_note_made, asked, found)
                return executable.run_for(args, asked.layouts, note, asked.instance, found.instance)
            served = found.executable.serve(args, asked.layouts, found.values)
        except Declined as refusal:
            refusal.require(Scope.GENERAL, Scope.STORING_NOW)
            logger.info("compiled for one size only: %s", refusal)
            self.ledger.count("own_sizes", of=str(refusal))
            return None
        asked.on_general(served)
        return served.run


def _note_made(asked: BuildRequest, found: FoundGeneral, executable: Executable, built: BuiltFunction[Run]) -> None:
    """Reports a function that was made of code for any sizes, or loaded."""
    is_stored = built.loaded and not (built.helped or built.made_here)
    is_first = not is_stored and found.executable.note_made(asked.layouts)
    source, is_new = found.executable.family.general.graph, built.loaded or is_first
    asked.on_general(ServedGeneral(built.run, built, source, is_new, is_first=is_first))


def refuses_general(region: Graph) -> bool:
    """True if each compiler compiles a region for its own sizes: see ``check_general``."""
    try:
        check_general(region)
    except Declined as refusal:
        refusal.require(Scope.GENERAL)
        return True
    return False


def _find_region(executable: Executable, asked: BuildRequest) -> Graph:
    """Returns the region that is compiled for a call, with inputs and outputs in the order of its template."""
    return in_order_of_template(executable.source_for(asked.layouts, asked.instance))
