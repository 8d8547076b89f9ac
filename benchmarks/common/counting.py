"""Compilations other than fusioncache's, and what benchmarks change in their own processes, as nothing lets them ask.

- The regions that fusioncache's executor compiles by itself are reported by its observers.
- What Thunder's nvFuser executor defines is counted in ``create_fd``, which Thunder looks up in its module: it reports
  nothing, and ``LruFusionCache`` has to go around this function.
- The backend of the executor's own regions is the best one here, without an option; every mode needs the same.
- Which regions are run by folds is in the record, which is written when a process ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from thunder.extend import get_executor

from fusioncache.backends.nvfuser.definition import nvfuser_executor
from fusioncache.observe.record.events import CompileEvent
from fusioncache.template.plan import Plan
from fusioncache.transform import executor, sharing
from fusioncache.transform.executors import NAME


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

    def observe(self, event: CompileEvent) -> None:
        """Counts what fusioncache's executor compiled."""
        self._count += 1
        self.seconds += event.seconds

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
        get_executor(NAME).observers.append(counter.observe)
    return counter


@contextmanager
def counting_compiles(backend: str) -> Iterator[Counter]:
    """Counts as ``count_compiles`` does, and leaves Thunder as it was: programs of other functions are not kept."""
    counter = count_compiles(backend)
    try:
        yield counter
    finally:
        if backend == "nvfuser":
            thunders: Any = nvfuser_executor()
            thunders.create_fd = thunders.create_fd.__wrapped__
        else:
            get_executor(NAME).observers.remove(counter.observe)


def _count_definitions(counter: Counter, lru: bool) -> None:
    """Counts the definitions that Thunder's nvFuser executor makes."""
    thunders: Any = nvfuser_executor()
    original = create = thunders.create_fd
    if lru:
        from nvfuser_direct import LruFusionCache

        create = LruFusionCache()(create)
        counter.count_distinct(create.num_fusions)

    @wraps(original)
    def create_fd(*args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_globals["__name__"].startswith("fusioncache."):
            return original(*args, **kwargs)  # fusioncache reports by itself what it compiles
        with counter.timing():
            definition = create(*args, **kwargs)
        # On the instance, in front of the method: nvFuser compiles when a definition is first executed.
        definition.execute = counter.count_first_call(definition.execute)
        return definition

    thunders.create_fd = create_fd


def count_folds() -> Callable[[], int]:
    """Counts the regions that are run by folds, from now on. What it returns says how many there were."""
    choose, folds = sharing.choose_plan, 0

    def choose_plan(*args: Any, **kwargs: Any) -> Plan:
        nonlocal folds
        plan = choose(*args, **kwargs)
        folds += plan is Plan.FOLD
        return plan

    sharing.choose_plan = choose_plan  # type: ignore[attr-defined]
    return lambda: folds
