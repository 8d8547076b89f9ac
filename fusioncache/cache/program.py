"""One graph without parameters and what a backend made of it, once for each layout of its arguments."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fusioncache.backends.api import Backend, Run
from fusioncache.ir import Graph, Instance, refs_in
from fusioncache.ir.ops import COPY
from fusioncache.ir.permutation import pick, picker
from fusioncache.ir.request import ArgumentLayouts
from fusioncache.process import forks
from fusioncache.template.operand_order import depends_on_operand_order

_MOST_SEEN = 1024


class Tell(Protocol):
    """Is told when a function was made."""

    def __call__(self, seconds: float, *, loaded: bool = False, compile_seconds: float = 0.0) -> None:
        """It took these seconds, to compile it or to load it; and those to compile what was loaded, back then."""


@dataclass(frozen=True, slots=True)
class Built:
    """A function and what it computes.

    Attributes:
        run: takes the inputs of the region.
        instance: the region, and how it lies in the graph.
        loaded: whether it was loaded, rather than compiled here.
        compile_seconds: that compiling what was loaded took, where it was compiled.
    """

    run: Run
    instance: Instance
    loaded: bool
    compile_seconds: float = 0.0


class Builder(Protocol):
    """Compiles, or finds what was compiled before."""

    def build(self, graph: Graph, instance: Instance, place: ArgumentLayouts, args: Sequence[Any]) -> Built:
        """A function for arguments of this very place. ``instance`` is what to compile if there is none yet."""


class Program:
    """Compiles a graph at most once for each layout, whichever threads and templates ask for it.

    What the backend is given is the region that the graph was first seen in, where there is one: nvFuser splits and
    schedules a kernel by the order of its definition, so that only Thunder's own order gives Thunder's own bits. Where
    the arguments lie so that the order of operands shows, it is the region that asks, and no other shares the result.

    Args:
        graph: what to compute, in canonical order.
        compiler: compiles it.
        instance: the region that it comes from.
        builder: asked in place of the compiler, if there is one.
    """

    __slots__ = ("_builder", "_compiler", "_instance", "_loaded", "_lock", "_seen", "_sources", "_variants", "graph")

    def __init__(
        self, graph: Graph, compiler: Backend, instance: Instance | None = None, builder: Builder | None = None
    ):
        self.graph = graph
        self._instance = instance or _as_it_is(graph)
        self._compiler = compiler
        self._builder = builder
        self._variants: dict[tuple[Hashable, Instance | None], Run] = {}
        self._loaded: dict[tuple[ArgumentLayouts, Instance | None], Run] = {}
        self._seen: dict[tuple[ArgumentLayouts, Instance | None], Run] = {}
        self._sources: list[Graph] = []
        self._lock = forks.lock()

    @property
    def sources(self) -> tuple[Graph, ...]:
        """The regions that functions were compiled from, here or where they come from; what will be, before that."""
        return tuple(self._sources) or (self._instance.region,)

    def run_for(self, args: Sequence[Any], compiled: Tell, instance: Instance | None = None) -> Run:
        """The function for arguments of this layout.

        Args:
            args: tensors and numbers as the graph's inputs.
            compiled: is told the seconds, if this call had to compile or to load.
            instance: the region that asks, if it may be another one than the first.

        Raises:
            Whatever the backend raises.
        """
        place, instance = layouts_of(args), instance or self._instance
        run = self._seen.get((place, None)) or self._seen.get((place, instance))
        if run is None:
            own = instance if depends_on_operand_order(self.graph, place) else None
            run = self._variant(place, own, args, compiled)
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen[place, own] = run
        return run

    def _variant(self, place: ArgumentLayouts, own: Instance | None, args: Sequence[Any], compiled: Tell) -> Run:
        """The function of a region of its own, or of the first one."""
        layout = self._compiler.layout(args)
        with self._lock:
            run = self._loaded.get((place, own)) or self._variants.get((layout, own))
            if run is None:
                start = time.perf_counter()
                built = self._build(place, own or self._instance, args)
                run = _reordered(built.run, built.instance, len(args))
                if built.instance.region not in self._sources:
                    self._sources.append(built.instance.region)
                if built.loaded:
                    # Made for these very strides, while a compiler may take others of the same layout as well.
                    self._loaded[place, own] = run
                else:
                    self._variants[layout, own] = run
                seconds = time.perf_counter() - start
                compiled(seconds, loaded=built.loaded, compile_seconds=built.compile_seconds)
        return run

    def _build(self, place: ArgumentLayouts, instance: Instance, args: Sequence[Any]) -> Built:
        args = _spared(self.graph, args)
        if self._builder is not None:
            return self._builder.build(self.graph, instance, place, args)
        run = self._compiler.compile(instance.region, pick(args, instance.inputs))
        return Built(run, instance, loaded=False)


def layouts_of(args: Sequence[Any]) -> ArgumentLayouts:
    """Where arguments lie."""
    return tuple((arg.shape, arg.stride()) if hasattr(arg, "stride") else None for arg in args)


def _as_it_is(graph: Graph) -> Instance:
    return Instance(graph, tuple(range(len(graph.inputs))), tuple(range(len(graph.outputs))))


def _spared(graph: Graph, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments with copies, of the same layout, of those that the graph writes into: compiling runs it once."""
    written = {index for op in graph.ops if op.name == COPY for _, index in refs_in(op.args[1])}
    return [_copied(arg) if place in written else arg for place, arg in enumerate(args)] if written else args


def _copied(tensor: Any) -> Any:
    return tensor.new_empty_strided(tensor.shape, tensor.stride()).copy_(tensor.detach())


def _reordered(run: Run, instance: Instance, inputs: int) -> Run:
    """The instance's function in the terms of its template."""
    take, give = picker(instance.inputs, inputs), picker(instance.outputs, len(instance.region.outputs))
    if take and give:
        return lambda args: give(run(take(args)))
    if take:
        return lambda args: run(take(args))
    return (lambda args: give(run(args))) if give else run
