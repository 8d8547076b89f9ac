"""What benchmarks change in Thunder and in fusioncache, in their own processes, because nothing of it is reported.

- Compilations where fusioncache does not compile: Thunder's nvFuser executor, and regions that fusioncache's executor
  runs as Thunder made them. These are the yardstick, and so run without fusioncache's transform, which reports its own.
- The backend of such regions, which fusioncache's executor chooses by itself, so that every mode has the same compiler.
- How many regions are run by folds: the plan of a region is in the record, which a benchmark does not write.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from fusioncache.backends.nvfuser import definition as nvfuser
from fusioncache.template.plan import Plan
from fusioncache.trace import executor, transform


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

    def time_calls(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function, each call of it timed."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.timing():
                return function(*args, **kwargs)

        return call

    def count_first_call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function, its first call counted and timed as a compilation."""
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


def use_backend(backend: str) -> None:
    """Lets fusioncache's executor use this backend without the transform, in place of what it would choose."""
    if backend != "nvfuser":
        executor.best_backend = lambda device: backend  # type: ignore[attr-defined]


def count_compiles(backend: str, *, lru: bool = False) -> Counter:
    """Counts what is compiled from now on, other than by fusioncache.

    Args:
        backend: the one in use.
        lru: whether to put nvFuser's ``LruFusionCache`` around ``create_fd``, as lightning-thunder#2806 does.
    """
    counter = Counter()
    if backend == "nvfuser":
        _count_definitions(counter, lru)
    else:
        _count_regions(counter, backend)
    return counter


def _count_definitions(counter: Counter, lru: bool) -> None:
    """Counts the definitions that Thunder's nvFuser executor makes."""
    changed: Any = nvfuser
    thunders: Any = nvfuser.nvfuser_executor()
    # What fusioncache compiles through the same function it counts by itself.
    unchanged = SimpleNamespace(**vars(thunders))
    changed.nvfuser_executor = lambda: unchanged
    create = thunders.create_fd
    if lru:
        from nvfuser_direct import LruFusionCache

        create = LruFusionCache()(create)
        counter.count_distinct(create.num_fusions)
    timed = counter.time_calls(create)

    def create_fd(*args: Any, **kwargs: Any) -> Any:
        definition = timed(*args, **kwargs)
        # On the instance, in front of the method: nvFuser compiles when a definition is first executed.
        definition.execute = counter.count_first_call(definition.execute)
        return definition

    thunders.create_fd = create_fd


def _count_regions(counter: Counter, backend: str) -> None:
    """Counts the regions that fusioncache's executor compiles or interprets without the transform."""
    changed: Any = executor
    torch_function, inductor_function = changed.torch_function, changed.inductor_function
    if backend == "eager":
        changed.torch_function = lambda *region: counter.count_first_call(counter.time_calls(torch_function)(*region))
        return
    changed.torch_function = counter.time_calls(torch_function)
    changed.inductor_function = lambda function: counter.count_first_call(inductor_function(function))


def count_folds() -> Callable[[], int]:
    """Counts the regions that are run by folds, from now on. What it returns says how many there were."""
    choose, folds = transform.choose_plan, 0

    def choose_plan(*args: Any, **kwargs: Any) -> Plan:
        nonlocal folds
        plan = choose(*args, **kwargs)
        folds += plan is Plan.FOLD
        return plan

    transform.choose_plan = choose_plan  # type: ignore[attr-defined]
    return lambda: folds
