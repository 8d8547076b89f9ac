"""One graph without parameters and what a backend made of it, once for each layout of its arguments."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Any, Protocol

from fusioncache.ir import Graph, Original, refs_in
from fusioncache.template.vocabulary import EFFECTS

_MOST_SEEN = 1024

Run = Callable[[Sequence[Any]], Sequence[Any]]
"""Takes the arguments as one sequence and returns the outputs."""

Sum = Callable[[Any, Sequence[Any]], Any]
"""Takes head and terms of a residual chain. Returns their sum, or None where folds are to add them this time."""

Adder = Callable[[str, Any, Sequence[Any], Callable[[float], None]], Sum | None]
"""A backend's own way to sum residual chains.

Takes the sum's dtype by its full name, a head and terms, and what is to be told the seconds if something had to be
compiled. Returns a function for such tensors, of this layout and dtype, bitwise the same as folds and with nothing left
to compile; None if folds are to add them. May raise whatever the backend raises.
"""


class Compiler(Protocol):
    """What a program asks of a backend."""

    def layout(self, args: Sequence[Any]) -> Hashable:
        """What a compilation depends on, of the arguments' memory layout."""

    def compile(self, graph: Graph, args: Sequence[Any]) -> Run:
        """A function for arguments of this layout. It was called with these once, so nothing is left to compile."""


class Program:
    """Compiles a graph at most once for each layout, whichever threads and templates ask for it.

    What the backend is given is the region that the graph was first seen in, where there is one: nvFuser splits and
    schedules a kernel by the order of its definition, so that only Thunder's own order gives Thunder's own bits.

    Args:
        graph: what to compute, in canonical order.
        compiler: compiles it.
        original: the region that it comes from.
    """

    __slots__ = ("_compiler", "_lock", "_original", "_seen", "_variants", "graph")

    def __init__(self, graph: Graph, compiler: Compiler, original: Original | None = None):
        self.graph = graph
        self._original = original
        self._compiler = compiler
        self._variants: dict[Hashable, Run] = {}
        self._seen: dict[Hashable, Run] = {}
        self._lock = threading.Lock()

    @property
    def source(self) -> Graph:
        """What the backend is given."""
        return self._original.region if self._original else self.graph

    def run_for(self, args: Sequence[Any], compiled: Callable[[float], None]) -> Run:
        """The function for arguments of this layout.

        Args:
            args: tensors and numbers as the graph's inputs.
            compiled: is told the seconds, if this call had to compile.

        Raises:
            Whatever the backend raises.
        """
        place = tuple((arg.stride(), arg.shape) if hasattr(arg, "stride") else None for arg in args)
        run = self._seen.get(place)
        if run is None:
            run = self._variant(args, compiled)
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen[place] = run
        return run

    def _variant(self, args: Sequence[Any], compiled: Callable[[float], None]) -> Run:
        layout = self._compiler.layout(args)
        with self._lock:
            run = self._variants.get(layout)
            if run is None:
                start = time.perf_counter()
                run = self._compile(args)
                compiled(time.perf_counter() - start)
                self._variants[layout] = run
        return run

    def _compile(self, args: Sequence[Any]) -> Run:
        original = self._original
        args = _spared(self.graph, args)
        if original is None:
            return self._compiler.compile(self.source, args)
        run = self._compiler.compile(self.source, [args[place] for place in original.inputs])
        return _reordered(run, original, len(args))


def _spared(graph: Graph, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments with copies, of the same layout, of those that the graph writes into: compiling runs it once."""
    written = {index for op in graph.ops if op.name in EFFECTS for _, index in refs_in(op.args[1])}
    return [_copied(arg) if place in written else arg for place, arg in enumerate(args)] if written else args


def _copied(tensor: Any) -> Any:
    return tensor.new_empty_strided(tensor.shape, tensor.stride()).copy_(tensor.detach())


def _reordered(run: Run, original: Original, inputs: int) -> Run:
    """The original's function in the terms of its template."""
    take, give = _picker(original.inputs, inputs), _picker(original.outputs, len(original.region.outputs))
    if take and give:
        return lambda args: give(run(take(args)))
    if take:
        return lambda args: run(take(args))
    return (lambda args: give(run(args))) if give else run


def _picker(places: Sequence[int], count: int) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
    """Picks these of ``count`` values; None if that changes nothing."""
    if tuple(places) == tuple(range(count)):
        return None
    if len(places) == 1:
        (place,) = places
        return lambda values: (values[place],)
    return itemgetter(*places)
