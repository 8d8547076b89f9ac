"""Counts and times a backend's compilations where fusioncache does not: in regions as Thunder made them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any


class Counter:
    """Compilations so far, and the seconds they took, each up to the end of its first execution."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._count = 0
        self._distinct: Callable[[], int] | None = None

    @property
    def compiles(self) -> int:
        """How many there were. With nvFuser's own cache: how many were not found in it."""
        return self._distinct() if self._distinct else self._count

    def count_distinct(self, distinct: Callable[[], int]) -> None:
        """Leaves the counting to a cache; the seconds stay here."""
        self._distinct = distinct

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Adds what happens inside to the seconds."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, each call of it timed."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.timing():
                return function(*args, **kwargs)

        return call

    def compiled_when_called(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its first call counted and timed as a compilation."""
        called = False

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal called
            if called:
                return function(*args, **kwargs)
            called = True
            self._count += 1
            with self.timing():
                return function(*args, **kwargs)

        return call


def count_nvfuser(counter: Counter, *, lru: bool) -> None:
    """Counts the definitions that Thunder's nvFuser executor makes, from now on.

    Args:
        counter: where to.
        lru: whether to put nvFuser's ``LruFusionCache`` around ``create_fd``, as lightning-thunder#2806 does.
    """
    nvfuser: Any = import_module("fusioncache.backends.nvfuser.backend")
    executor = nvfuser.nvfuser_executor()
    original = executor.create_fd
    # What fusioncache compiles through the same function it counts by itself.
    unchanged = SimpleNamespace(**vars(executor))
    nvfuser.nvfuser_executor = lambda: unchanged
    create = original
    if lru:
        from nvfuser_direct import LruFusionCache

        create = LruFusionCache()(original)
        counter.count_distinct(create.num_fusions)
    timed = counter.timed(create)

    def create_fd(*args: Any, **kwargs: Any) -> Any:
        definition = timed(*args, **kwargs)
        # On the instance, in front of the method: nvFuser compiles when a definition is first executed.
        definition.execute = counter.compiled_when_called(definition.execute)
        return definition

    executor.create_fd = create_fd


def count_regions(counter: Counter, backend: str) -> None:
    """Counts the regions that fusioncache's executor compiles or interprets without the transform, from now on."""
    executor: Any = import_module("fusioncache.trace.executor")
    torch_function, inductor_function = executor.torch_function, executor.inductor_function
    if backend == "eager":
        executor.torch_function = lambda *region: counter.compiled_when_called(counter.timed(torch_function)(*region))
        return
    executor.torch_function = counter.timed(torch_function)
    executor.inductor_function = lambda function: counter.compiled_when_called(inductor_function(function))
