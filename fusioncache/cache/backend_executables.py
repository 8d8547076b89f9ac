"""The executables that a backend makes under the settings of the moment, and which function serves a call.

nvFuser 0.2.36 cannot compile some regions, which then fail under Thunder alone as well. In half such a region mostly
compiles. Measured on an H200 (a backward region of ConvNeXt, 62 operations): its halves take 1.1 s to compile and 42 to
59 us to run, one operation after the other 0.1 s and 383 to 424 us. Each half is a graph like any other, in the store
as well. The store has that the whole is rejected, so that the next process does not ask the compiler for it again.

Code for any sizes may be slower than code for one: TorchInductor divides a small region's work among threads where it
does not know that it is small, and nvFuser looks at each argument in every call. And of nvFuser only code for one set
of sizes can be stored. So a size that is used again gets a function of its own, compiled by the pool or, before a
capture, in this process.

nvFuser's code for any sizes may also not be captured in a CUDA graph: nvFuser owns its kernels, and unloads one when it
compiles it again for a larger block. Where a call is captured, or is the one before a capture, the region runs code of
its own size.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Any, Protocol

from fusioncache.backends.api import Backend, Run
from fusioncache.backends.eager import run_one_by_one
from fusioncache.backends.torch_settings import forbids_changes, is_capturing, is_out_of_memory, read_torch_settings
from fusioncache.cache.cache import Cache
from fusioncache.cache.executable import Builder, BuiltFunction, Executable, OnBuild, RejectedRegion
from fusioncache.cache.generals import FoundGeneral, Generation, ServedGeneral, Sizes, check_general
from fusioncache.cache.peers import Ask
from fusioncache.ir import Declined, Graph, Instance, Scope
from fusioncache.ir.template import ArgumentLayouts, layouts_of
from fusioncache.observe.record.ledger import Ledger
from fusioncache.process import forks
from fusioncache.template.generalization import in_order_of_template
from fusioncache.template.skeleton import skeleton_of
from fusioncache.template.writer import GraphPart, cut, take

logger = logging.getLogger("fusioncache")

WAITING = "code for any sizes, until code for these sizes is compiled"
"""Why a program is not captured yet."""
_unsettled: ContextVar[list[object] | None] = ContextVar("fusioncache_unsettled", default=None)


@contextmanager
def prepare_capture() -> Iterator[list[object]]:
    """Makes the calls of this thread inside the block those before a capture.

    Yields:
        A list of the functions that were called and may not be captured, filled by the calls.
    """
    unsettled: list[object] = []
    token = _unsettled.set(unsettled)
    try:
        yield unsettled
    finally:
        _unsettled.reset(token)


LEAST_OPERATIONS = 8
"""A rejected piece with fewer operations is not cut again: they run one by one."""

OFTEN = 100
"""The call with one layout that asks for a function of its own where code for any sizes is stored."""
SOON = 8
"""The same where code for any sizes is not stored: a later process would compile it again."""
MOST, MOST_UNSTORED = 4, 64
"""How many sizes of code for any sizes get a function of their own: where it is stored, and where it is not."""
_BETWEEN = 5
"""The number of calls between two looks at whether the pool has compiled it."""


@dataclass(frozen=True, slots=True)
class Order:
    """A function for one size that may take the place of a general one.

    Attributes:
        place: queues the compile in the pool; False if there is nothing to compile.
        is_done: True if the pool has compiled it, or will not.
        fetch: returns the stored function for these arguments; None if there is none.
        build: returns the function for these arguments, compiled in this process if it is not stored.
        build_apart: returns a function for these arguments while a CUDA graph is captured.
        after: the number of the call that places the order.
        captures: whether the general function may be captured in a CUDA graph.
    """

    place: Callable[[], bool]
    is_done: Callable[[], bool]
    fetch: Callable[[Sequence[Any]], Run | None]
    build: Callable[[Sequence[Any]], Run]
    build_apart: Callable[[Sequence[Any]], Run]
    after: int = OFTEN
    captures: bool = True


def replace_if_reused(run: Run, order: Order) -> Run:
    """Returns a function that does as ``run``, until the function of its own size takes that one's place.

    If anything goes wrong, ``run`` stays.
    """
    size = _Size(run, order)
    return size.call if order.captures else size.call_unless_captured


class _Size:
    """One size of a general function: counts its calls, and replaces the function."""

    __slots__ = ("_apart", "_calls", "_due", "_is_placed", "_lock", "_order", "_own", "_run")

    def __init__(self, run: Run, order: Order):
        self._run = run
        self._order = order
        self._calls, self._due = 0, float(order.after)
        self._is_placed = False
        self._own: Run | None = None
        self._apart: Run | None = None
        self._lock = forks.lock()

    def call(self, args: Sequence[Any]) -> Sequence[Any]:
        """Runs the function, and looks for its own one where that is due."""
        self._calls += 1
        if self._calls >= self._due and not forbids_changes():
            try:
                self._look(args)
            except Exception as error:  # there is a function
                logger.info("a size that is used often gets no function of its own", exc_info=error)
        return self._run(args)

    def call_unless_captured(self, args: Sequence[Any]) -> Sequence[Any]:
        """Does as ``call``, and runs the function of its own size where a CUDA graph captures the call or soon will."""
        if self._own is not None:
            return self._own(args)
        if is_capturing():
            return self._find_apart(args)(args)
        unsettled = _unsettled.get()
        if unsettled is not None and not self._settle(args):
            unsettled.append(self)
        return self.call(args)

    def _look(self, args: Sequence[Any]) -> None:
        self._due = inf  # for other threads, and if something fails
        self._is_placed = self._is_placed or self._order.place()
        if self._is_placed and self._order.is_done():
            self._replace(self._order.fetch(args))
        elif self._is_placed:
            self._due = self._calls + _BETWEEN

    def _replace(self, own: Run | None) -> None:
        if own is not None:
            self._run = self._own = own

    def _settle(self, args: Sequence[Any]) -> bool:
        """Replaces the function now; False if it has to wait for the pool, or cannot be replaced."""
        if forbids_changes():
            return False
        try:
            self._is_placed = self._is_placed or self._order.place()
            if self._is_placed and not self._order.is_done():
                return False
            with self._lock:
                if self._own is None:
                    self._replace(self._order.build(args))
        except Exception as error:  # the program runs without a graph
            logger.info("a size gets no function of its own before a capture", exc_info=error)
            return False
        return True

    def _find_apart(self, args: Sequence[Any]) -> Run:
        """Returns the function for a call that something else captures, such as a graph of the user's."""
        with self._lock:
            if self._apart is None:
                self._apart = self._order.build_apart(args)
            return self._apart


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
        on_own: is told that one for its own sizes, which others compiled, takes that one's place.
        generation: the program that the region is of, if it is known.
        instance: the region that asks, if it may be another one than the first.
    """

    graph: Graph
    layouts: ArgumentLayouts
    on_build: OnBuild
    on_general: OnGeneral
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

        Of a graph that is known with other sizes, it is the one that was compiled for its own, or one for any sizes;
        before there is one of these, it is the one that the store has for its own. Of others, and where there is none,
        it is compiled.

        Raises:
            Declined: if what is compiled now may not be shared.
            RejectedRegion: if the compiler rejects the graph, or rejected it with other sizes.
            Exception: whatever else the backend raises.
        """
        environment = self.backend.environment()
        executable, may_share = self._find_executable(asked.graph, asked.instance, environment), False
        if self._sizes is not Sizes.STATIC and asked.generation is not None:
            region = _find_region(executable, asked)
            found = self._cache.generals.join(region, asked.generation, self._sizes, self.builder(environment))
            run = self._serve_general(executable, region, args, asked, found) if found else None
            if run is not None:
                return run
            may_share = found is not None
        rejections = self._cache.rejections
        if len(rejections) and not executable.is_built:
            rejected = rejections.get(self._name_rejection(executable, asked))
            if rejected is not None:
                raise RejectedRegion(rejected)
        try:
            return executable.run_for(args, asked.layouts, self._note_costs(asked, may_share=may_share), asked.instance)
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

    def expects_general(self, graph: Graph, instance: Instance | None, generation: Generation | None) -> bool:
        """True if the function of a graph is likely to be one for any sizes."""
        if self._sizes is Sizes.STATIC or generation is None or not self.backend.generalizes:
            return False
        if not self._takes_general(generation):
            return False
        region = in_order_of_template(instance) if instance else graph
        builder = self.builder(self.backend.environment())
        return self._cache.generals.expects(region, generation, self._sizes, builder)

    def _takes_general(self, generation: Generation | None) -> bool:
        """True if a program is to get code for any sizes now. Where that is not stored, it has to pay first."""
        if self.backend.stores_general or self._sizes is Sizes.DYNAMIC or generation is None:
            return True
        return self._cache.length_rule.takes_general(generation)

    def _note_costs(self, asked: BuildRequest, *, may_share: bool) -> OnBuild:
        """Returns what is told of a function for its own sizes."""
        program = asked.generation
        if self.backend.stores_general or program is None:
            return asked.on_build

        def note(executable: Executable, built: BuiltFunction[Run]) -> None:
            self._cache.length_rule.note(program, built.cost, built.seconds, may_share=may_share)
            asked.on_build(executable, built)

        return note

    def _serve_general(
        self, executable: Executable, region: Graph, args: Sequence[Any], asked: BuildRequest, found: FoundGeneral
    ) -> Run | None:
        """Returns what need not be compiled for a graph that is known with other sizes; None if there is nothing."""
        if self.backend.generalizes and (executable.is_built or not found.executable.is_ready(asked.layouts)):
            kept = executable.find_for(args, asked.layouts, asked.on_build, asked.instance)
            if kept is not None:
                return kept
        if not found.executable.is_ready(asked.layouts) and not self._takes_general(asked.generation):
            return None
        try:
            check_general(region)
            served = found.executable.serve(args, asked.layouts, found.values)
        except Declined as refusal:
            refusal.require(Scope.GENERAL)
            logger.info("compiled for one size only: %s", refusal)
            self.ledger.count("own_sizes", of=str(refusal))
            return None
        asked.on_general(served)
        return self._replace_if_reused(found, served, asked, executable)

    def _replace_if_reused(
        self, found: FoundGeneral, served: ServedGeneral, asked: BuildRequest, executable: Executable
    ) -> Run:
        """Returns the function for any sizes, until one for the sizes of these arguments takes its place.

        The store is asked for that when the order is placed.
        """
        captures = self.backend.captures_general
        if self._cache.store is None and captures:
            return served.run
        helpers, allowance = self._cache.helpers, found.executable.own
        handed_over = list[Ask]()
        is_stored = served.built.key is not None
        most = MOST if is_stored else MOST_UNSTORED

        def place() -> bool:
            ask = executable.foresee(asked.layouts, asked.instance)
            if ask is not None and helpers is not None and allowance.take(most):
                handed_over.append(ask)
                self.ledger.count("handed_over", helpers.hand_over(handed_over))
            return ask is not None

        def is_done() -> bool:
            return helpers is None or all(helpers.is_done(ask.key) for ask in handed_over)

        def fetch(args: Sequence[Any]) -> Run | None:
            if helpers is not None and handed_over:
                helpers.wait_for(handed_over[0].key)
            run = executable.find_for(args, asked.layouts, asked.on_build, asked.instance)
            if run is not None:
                asked.on_own()
            return run

        def build(args: Sequence[Any]) -> Run:
            run = executable.run_for(args, asked.layouts, asked.on_build, asked.instance)
            asked.on_own()
            return run

        def build_apart(args: Sequence[Any]) -> Run:
            return executable.build_apart(args, asked.instance)

        after = OFTEN if is_stored else SOON
        return replace_if_reused(served.run, Order(place, is_done, fetch, build, build_apart, after, captures))


def _find_region(executable: Executable, asked: BuildRequest) -> Graph:
    """Returns the region that is compiled for a call, with inputs and outputs in the order of its template."""
    return in_order_of_template(executable.source_for(asked.layouts, asked.instance))
