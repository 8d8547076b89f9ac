"""One graph without parameters and what a backend made of it, once for each layout of its arguments."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from fusioncache.ir import Graph

_MOST_SEEN = 1024

Run = Callable[[Sequence[Any]], Sequence[Any]]
"""Takes the arguments as one sequence and returns the outputs."""


class Compiler(Protocol):
    """What a program asks of a backend."""

    def layout(self, args: Sequence[Any]) -> Hashable:
        """What a compilation depends on, of the arguments' memory layout."""

    def compile(self, graph: Graph, args: Sequence[Any]) -> Run:
        """A function for arguments of this layout. It was called with these once, so nothing is left to compile."""


class Program:
    """Compiles a graph at most once for each layout, whichever threads and templates ask for it."""

    __slots__ = ("_compiler", "_lock", "_seen", "_variants", "graph")

    def __init__(self, graph: Graph, compiler: Compiler):
        self.graph = graph
        self._compiler = compiler
        self._variants: dict[Hashable, Run] = {}
        self._seen: dict[Hashable, Run] = {}
        self._lock = threading.Lock()

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
                run = self._compiler.compile(self.graph, args)
                compiled(time.perf_counter() - start)
                self._variants[layout] = run
        return run
