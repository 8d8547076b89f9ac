"""A graph without parameters and the functions that a backend made of it, one for each layout of its arguments."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusioncache.backends.api import Backend, OnStart, Run, ignore_start, process_starts
from fusioncache.cache.helpers import Ask
from fusioncache.cache.rejections import RejectedRegion
from fusioncache.ir import Graph, Instance, Key
from fusioncache.ir.ops import writes_of
from fusioncache.ir.permutation import pick, picker
from fusioncache.ir.request import ArgumentLayouts
from fusioncache.process import forks
from fusioncache.template.operand_order import depends_on_operand_order

_MOST_SEEN = 1024


@dataclass(frozen=True, slots=True)
class BuiltFunction:
    """A function and what it computes.

    Attributes:
        run: takes the inputs of the region.
        instance: the region, and which of the graph's values its values are.
        key: under which the store has it; None if it is not persisted.
        loaded: whether it was loaded, rather than compiled here.
        compile_seconds: that compiling it alone takes, without making its artifacts; 0 if ``seconds`` is just that.
        seconds: that compiling or loading it took here.
        helped: whether it was loaded because a helper of this process had just compiled it.
        made_here: whether it was loaded because this process had compiled it while it waited for a helper.
        shifted: seconds that count as its own although they were spent before, less those that do not, such as those
            that the compiler took to start.
        exact: does the same in less time, for arguments of the very layouts that it was built with; None if nothing
            does.
    """

    run: Run
    instance: Instance
    key: Key | None = None
    loaded: bool = False
    compile_seconds: float = 0.0
    seconds: float = 0.0
    helped: bool = False
    made_here: bool = False
    shifted: float = 0.0
    exact: Run | None = None

    @property
    def cost(self) -> float:
        """Seconds that compiling it alone takes."""
        return self.compile_seconds or (0.0 if self.loaded else self.seconds)


class Builder:
    """Builds functions with a backend for this process alone: each is compiled.

    Args:
        backend: compiles.
        on_start: is told of the compiler's start, if it starts for this.

    Attributes:
        backend: the same.
    """

    def __init__(self, backend: Backend, on_start: OnStart = ignore_start):
        self.backend = backend
        self._on_start = on_start

    def build(self, graph: Graph, instance: Instance, layouts: ArgumentLayouts, args: Sequence[Any]) -> BuiltFunction:
        """Builds a function for arguments of a graph.

        Args:
            graph: to be computed.
            instance: what to compile, if there is no function yet.
            layouts: of the arguments. The function need not be right for others.
            args: tensors and numbers as the graph's inputs.

        Raises:
            Exception: whatever the backend raises.
        """
        return self.compile(instance, args)

    def compile(self, instance: Instance, args: Sequence[Any], key: Key | None = None) -> BuiltFunction:
        """Compiles a function that is not persisted."""
        started = self.start(instance, joined=False)
        run = self.backend.compile(instance.region, pick(args, instance.inputs))
        return BuiltFunction(run, instance, key, shifted=-started)

    def start(self, instance: Instance, *, joined: bool) -> float:
        """Starts the compiler if it has not compiled yet. Returns the seconds, which are no part of a compile."""
        return process_starts().start(self.backend, instance.region, self._on_start, joined=joined)

    def load(
        self, graph: Graph, instance: Instance, layouts: ArgumentLayouts, args: Sequence[Any]
    ) -> BuiltFunction | None:
        """Does as ``build`` if nothing has to be compiled for it; returns None otherwise."""
        return None

    def reject(self, graph: Graph, instance: Instance, layouts: ArgumentLayouts, rejection: RejectedRegion) -> None:
        """Stores that the compiler rejects a region, and what runs it, if there is a store."""

    def foresee(self, graph: Graph, instance: Instance, layouts: ArgumentLayouts) -> Ask | None:
        """Returns what ``build`` is going to ask the store for; None if it asks no store, or in vain."""
        return None


class Executable:
    """Builds the functions of a graph, at most one for each layout, whichever threads and templates ask for it.

    What the backend is given is the region that the graph was first seen in, where there is one: nvFuser splits and
    schedules a kernel by the order of its definition, so that only Thunder's own order gives Thunder's own bits. Where
    the arguments lie so that the order of operands shows, it is the region that asks, and no other shares the result.

    Args:
        graph: what to compute, in canonical order.
        builder: builds the functions.
        instance: the region that the graph comes from.
    """

    __slots__ = ("_builder", "_instance", "_loaded", "_lock", "_seen", "_sources", "_variants", "graph")

    def __init__(self, graph: Graph, builder: Builder, instance: Instance | None = None):
        self.graph = graph
        self._builder = builder
        self._instance = instance or instance_in_order(graph)
        self._variants: dict[tuple[Hashable, Instance | None], Run] = {}
        self._loaded: dict[tuple[ArgumentLayouts, Instance | None], Run] = {}
        self._seen: dict[tuple[ArgumentLayouts, Instance | None], Run] = {}
        self._sources: list[Graph] = []
        self._lock = forks.lock()

    @property
    def sources(self) -> tuple[Graph, ...]:
        """The regions that functions were compiled from, here or where they come from; what will be, before that."""
        return tuple(self._sources) or (self._instance.region,)

    @property
    def is_built(self) -> bool:
        """Whether it has a function for any layout."""
        return bool(self._variants or self._loaded)

    def add_source(self, source: Graph) -> None:
        """Notes that a function of it was compiled from this."""
        with self._lock:
            if source not in self._sources:
                self._sources.append(source)

    def run_for(self, args: Sequence[Any], on_build: OnBuild, instance: Instance | None = None) -> Run:
        """Returns the function for arguments of this layout.

        Args:
            args: tensors and numbers as the graph's inputs.
            on_build: is told of the function, if this call had to compile or to load it.
            instance: the region that asks, if it may be another one than the first.

        Raises:
            Exception: whatever the backend raises.
        """
        run = self._find(args, on_build, instance, self._builder.build)
        assert run is not None
        return run

    def find_for(self, args: Sequence[Any], on_build: OnBuild, instance: Instance | None = None) -> Run | None:
        """Does as ``run_for`` if nothing has to be compiled for it; returns None otherwise."""
        return self._find(args, on_build, instance, self._builder.load)

    def reject(self, args: Sequence[Any], rejection: RejectedRegion, instance: Instance | None = None) -> None:
        """Stores that the compiler rejects the region for arguments of this layout, and what runs it."""
        source = self.source_for(args, instance)
        self._builder.reject(self.graph, source, layouts_of(args), rejection)

    def build_apart(self, args: Sequence[Any], instance: Instance | None = None) -> Run:
        """Returns a function for arguments of this layout while a CUDA graph is captured. It is not shared."""
        source = self.source_for(args, instance)
        run = self._builder.backend.compile_apart(source.region, pick(args, source.inputs))
        return reorder(run, source, len(args))

    def source_for(self, args: Sequence[Any], instance: Instance | None = None) -> Instance:
        """Returns the region that would be compiled for arguments of this layout."""
        asking = instance or self._instance
        return asking if depends_on_operand_order(self.graph, layouts_of(args)) else self._instance

    def _find(self, args: Sequence[Any], on_build: OnBuild, instance: Instance | None, build: _Build) -> Run | None:
        layouts, instance = layouts_of(args), instance or self._instance
        run = self._seen.get((layouts, None)) or self._seen.get((layouts, instance))
        if run is None:
            own = instance if depends_on_operand_order(self.graph, layouts) else None
            run = self._variant(layouts, own, args, on_build, build)
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            if run is not None:
                self._seen[layouts, own] = run
        return run

    def foresee(self, layouts: ArgumentLayouts, instance: Instance | None = None) -> Ask | None:
        """Returns what the first call with arguments of these layouts asks for; None if nothing of it can be foreseen.

        Of an executable that was called before nothing is: what is there may do for these layouts as well.

        Args:
            layouts: of the arguments, as far as is known now.
            instance: the region that is going to ask, if it may be another one than the first.
        """
        if self.is_built:
            return None
        own = instance if depends_on_operand_order(self.graph, layouts) else None
        return self._builder.foresee(self.graph, own or self._instance, layouts)

    def _variant(
        self,
        layouts: ArgumentLayouts,
        own: Instance | None,
        args: Sequence[Any],
        on_build: OnBuild,
        build: _Build,
    ) -> Run | None:
        """Returns the function of a region of its own, or of the first one."""
        layout = self._builder.backend.layout(args)
        with self._lock:
            run = self._loaded.get((layouts, own)) or self._variants.get((layout, own))
            if run is None:
                start = time.perf_counter()
                args = _copy_written(self.graph, args)
                function = build(self.graph, own or self._instance, layouts, args)
                if function is None:
                    return None
                run = reorder(function.run, function.instance, len(args))
                self.add_source(function.instance.region)
                if function.loaded:
                    # Made for these very strides, while a compiler may take others of the same layout as well.
                    self._loaded[layouts, own] = run
                else:
                    self._variants[layout, own] = run
                    if function.exact is not None:
                        run = self._loaded[layouts, own] = reorder(function.exact, function.instance, len(args))
                on_build(self, replace(function, seconds=time.perf_counter() - start + function.shifted))
        return run


_Build = Callable[[Graph, Instance, ArgumentLayouts, Sequence[Any]], BuiltFunction | None]

OnBuild = Callable[[Executable, BuiltFunction], None]
"""Is told of an executable's function that was compiled or loaded."""


def layouts_of(args: Sequence[Any]) -> ArgumentLayouts:
    """Returns shape and strides of each tensor."""
    return tuple((arg.shape, arg.stride()) if hasattr(arg, "stride") else None for arg in args)


def instance_in_order(graph: Graph) -> Instance:
    """Returns a graph as the region that it comes from."""
    return Instance(graph, tuple(range(len(graph.inputs))), tuple(range(len(graph.outputs))))


def _copy_written(graph: Graph, args: Sequence[Any]) -> Sequence[Any]:
    """Copies, with their layout, the arguments that the graph writes into, because compiling runs it once."""
    written = {target for _, target in writes_of(graph)}
    return [_copy(arg) if index in written else arg for index, arg in enumerate(args)] if written else args


def _copy(tensor: Any) -> Any:
    return tensor.new_empty_strided(tensor.shape, tensor.stride()).copy_(tensor.detach())


def reorder(run: Run, instance: Instance, inputs: int) -> Run:
    """Makes the function of a region one in the order of its graph."""
    take, give = picker(instance.inputs, inputs), picker(instance.outputs, len(instance.region.outputs))
    if take and give:
        return lambda args: give(run(take(args)))
    if take:
        return lambda args: run(take(args))
    return (lambda args: give(run(args))) if give else run
