"""Counts compilations outside fusioncache, and patches functions where there is no API to count or to configure.

- Regions that fusioncache's executor compiles alone are counted in their first call.
- Definitions of Thunder's nvFuser executor are counted in ``create_fd``, which Thunder looks up in its module: the
  executor reports nothing, and ``LruFusionCache`` must wrap this function.
- Without the transform, fusioncache's executor uses the best backend and has no option. All modes need the same one.
- Only the record contains which regions are run by folds, and it is written when a process ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from fusioncache.backends.nvfuser.definition import nvfuser_executor
from fusioncache.template.plan import Plan
from fusioncache.transform import executor, sharing


class Counter:
    """Number of compilations so far, and their seconds, each up to the end of its first execution."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._count = 0
        self._distinct: Callable[[], int] | None = None

    @property
    def compiles(self) -> int:
        """Number of compilations; with nvFuser's cache, the number of its misses."""
        return self._distinct() if self._distinct else self._count

    def count_distinct(self, distinct: Callable[[], int]) -> None:
        """Takes the count from a cache; the seconds are still measured here."""
        self._distinct = distinct

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Adds the time of its body to the seconds."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    def count_first_call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a wrapper that counts and times the first call of the function as a compilation."""
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
    """Makes fusioncache's executor use this backend without the transform, in place of the best one."""
    if backend != "nvfuser":
        executor.best_backend = lambda device: backend  # type: ignore[attr-defined]


def count_compiles(backend: str, *, lru: bool = False) -> Counter:
    """Returns a counter of the compilations outside fusioncache from now on.

    Args:
        backend: in use.
        lru: whether to wrap ``create_fd`` in nvFuser's ``LruFusionCache``, as lightning-thunder#2806 does.
    """
    counter = Counter()
    if backend == "nvfuser":
        _count_definitions(counter, lru)
    else:
        _count_alone_regions(counter)
    return counter


@contextmanager
def counting_compiles(backend: str) -> Iterator[Counter]:
    """Counts as ``count_compiles`` does, then restores Thunder: with a patched function no programs are stored."""
    counter = count_compiles(backend)
    try:
        yield counter
    finally:
        if backend == "nvfuser":
            thunders: Any = nvfuser_executor()
            thunders.create_fd = thunders.create_fd.__wrapped__
        else:
            alone: Any = executor._AloneRegion
            alone._compute = alone._compute.__wrapped__


def _count_alone_regions(counter: Counter) -> None:
    """Counts the regions that fusioncache's executor compiles alone, each in its first call."""
    compute = executor._AloneRegion._compute

    @wraps(compute)
    def _compute(self: executor._AloneRegion, args: Sequence[Any]) -> Any:
        return (compute if self.function else counter.count_first_call(compute))(self, args)

    executor._AloneRegion._compute = _compute  # type: ignore[method-assign]


def _count_definitions(counter: Counter, lru: bool) -> None:
    """Counts the definitions of Thunder's nvFuser executor, each when it is first executed."""
    thunders: Any = nvfuser_executor()
    original = create = thunders.create_fd
    if lru:
        from nvfuser_direct import LruFusionCache

        create = LruFusionCache()(create)
        counter.count_distinct(create.num_fusions)

    @wraps(original)
    def create_fd(*args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_globals["__name__"].startswith("fusioncache."):
            return original(*args, **kwargs)  # fusioncache reports its compilations itself
        with counter.timing():
            definition = create(*args, **kwargs)
        # Shadows the method on the instance: nvFuser compiles when a definition is first executed.
        definition.execute = counter.count_first_call(definition.execute)
        return definition

    thunders.create_fd = create_fd


def count_folds() -> Callable[[], int]:
    """Returns a function that returns the number of regions run by folds, counted from now on."""
    choose, folds = sharing.choose_plan, 0

    def choose_plan(*args: Any, **kwargs: Any) -> Plan:
        nonlocal folds
        plan = choose(*args, **kwargs)
        folds += plan is Plan.FOLD
        return plan

    sharing.choose_plan = choose_plan  # type: ignore[attr-defined]
    return lambda: folds
