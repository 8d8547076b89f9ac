"""Python's garbage collector: paused while very many long-lived objects are made, which then count as old.

In a pause, new objects start no collection, in any thread of the process. Reference counts still free memory; only
cycles wait. ``gc.isenabled`` does not change, because a program may read or set it meanwhile; only the threshold does.

Traces and compilations leave very many objects that live long. Python would visit them twice more while they count as
young. It would then start a full collection, because the old objects have grown by a quarter: one of the next steps
would take many times as long as others. So a long pause ends with one collection of the new objects. Those that are
left become old at once, and do not count as growth. Old garbage does not pile up: if there are very many objects, and
twice as many as at the last such time, the pause ends with a full collection.
"""

from __future__ import annotations

import gc
import threading
import time
from contextlib import AbstractContextManager

from fusioncache.process import forks

_NEVER = 2_147_483_629
"""A threshold that is never reached, and that a program is unlikely to set itself."""

LEAST_SECONDS = 0.05
"""Shorter pauses leave few objects."""

FEW_OBJECTS = 2_000_000
"""With fewer objects in the process, no pause ends with a full collection. A deep model's traces have a million."""

MOST_FROZEN = 10_000
"""Python itself freezes a few hundred objects at its start. With more than this, the program has frozen some."""


class Pause:
    """A context, shared by any number of threads, in which the collector does not start automatically."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._inside: list[int] = []
        self._threshold = 0
        self._has_begun = False
        self._start = 0.0
        self._most = 0
        forks.register(self)

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._begin()
            self._inside.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if threading.get_ident() in self._inside:  # else it was removed after a fork
                self._inside.remove(threading.get_ident())
            was_long = self._end() and time.monotonic() - self._start >= LEAST_SECONDS
        if was_long and gc.isenabled():
            self._make_old()

    def _begin(self) -> None:
        threshold = gc.get_threshold()[0]
        self._has_begun = threshold != 0  # with 0 it does not start automatically anyway
        if self._has_begun:
            self._threshold = self._threshold if threshold == _NEVER else threshold
            gc.set_threshold(_NEVER)
        self._start = time.monotonic()

    def _end(self) -> bool:
        """Ends the pause if no thread is in it; returns whether it did."""
        if self._inside or not self._has_begun:
            return False
        self._has_begun = False
        if gc.get_threshold()[0] == _NEVER:  # else the program has set another one meanwhile
            gc.set_threshold(self._threshold)
        return True

    def _make_old(self) -> None:
        """Collects the youngest objects, and makes those that are left old."""
        gc.collect(0)
        if gc.get_freeze_count() > MOST_FROZEN:
            return  # the program's objects would thaw
        gc.freeze()
        count = gc.get_freeze_count()
        gc.unfreeze()
        if count > max(FEW_OBJECTS, self._most):
            self._most = 2 * count
            gc.collect()

    def after_fork(self) -> None:
        """Removes the threads that a forked child lacks."""
        thread = threading.get_ident()
        self._inside = [each for each in self._inside if each == thread]
        self._end()


_pause = Pause()


def without_collector() -> AbstractContextManager[None]:
    """Returns a context in which the collector does not start automatically, for code that makes very many objects."""
    return _pause
