"""The one-time start of each compiler in this process, timed by itself so that no region is charged for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cache

from fusioncache.backends.api import Backend
from fusioncache.ir import Graph, TensorType
from fusioncache.process import forks

logger = logging.getLogger("fusioncache")

OnStart = Callable[[str, float], None]
"""Is told the title of a compiler that was started, and the seconds that it took."""


class CompilerStarts:
    """Starts each compiler once for each type of device and each way to compile.

    Args:
        clock: returns seconds of a clock that only goes forward.
    """

    def __init__(self, clock: Callable[[], float] = lambda: time.perf_counter()):
        self._clock = clock
        self._started: set[tuple[type[Backend], str, bool]] = set()
        self._lock = forks.lock()

    def start(self, backend: Backend, graph: Graph, on_start: OnStart, *, joined: bool = False) -> float:
        """Starts the compiler if it is to compile its first graph for this type of device. Never raises.

        Args:
            backend: the compiler.
            graph: that is compiled next.
            on_start: is told of a start.
            joined: whether the graph is compiled in the way of ``Backend.compiled_together``.

        Returns:
            The seconds that this call took. A thread that waited while another one started the compiler waited for the
            start, too: these seconds are not part of a compile either.
        """
        kind = type(backend), device_of(graph), joined
        if kind in self._started:
            return 0.0
        begun = self._clock()
        with self._lock:
            if kind not in self._started:
                try:
                    backend.start(kind[1], joined=joined)
                except Exception as error:  # the compile that follows says what is wrong
                    logger.info("starting %s failed", backend.title, exc_info=error)
                self._started.add(kind)
                on_start(backend.title, self._clock() - begun)
        return self._clock() - begun


def device_of(graph: Graph) -> str:
    """Returns the type of device that a graph is compiled for: ``cuda`` if any of its tensors is there."""
    types = (*graph.inputs, *(type_ for op in graph.ops for type_ in op.outputs))
    return "cuda" if any(isinstance(type_, TensorType) and type_.device == "cuda" for type_ in types) else "cpu"


@cache
def process_starts() -> CompilerStarts:
    """Returns the starts of this process. In a forked child the compilers of the parent count as started."""
    return CompilerStarts()


def ignore_start(title: str, seconds: float) -> None:
    """Counts a start nowhere."""
