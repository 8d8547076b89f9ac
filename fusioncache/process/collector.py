"""Python's garbage collector, paused while very many objects are made that stay, and started behind long work.

In a pause no number of new objects starts a collection, in any thread of the process. Reference counts free memory all
the while; only cycles wait. Whether the collector is enabled is left alone, for a program may ask for that or change it
meanwhile; only of thresholds it may see another one.

Python starts a full collection, which looks at all objects, as soon as those that came to stay are a quarter of them.
Traces and compilations leave that many behind, and the step that it comes in takes many times as long as others. So one
is started behind some of these, where it is little of the time.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from fusioncache.process import forks

_NEVER = 2_147_483_629
"""So many new objects do not exist at once. A program that sets a threshold itself does not choose this one."""

LEAST_WORK = 0.05
"""Work that took fewer seconds leaves little behind, and is not counted."""

WORK_PER_COLLECTION = 20
"""A full collection is due as soon as work took this many times as long as one does."""


class Pause:
    """A context of any number of threads, in which the collector does not start by itself."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._inside: list[int] = []
        self._threshold = 0
        self._has_begun = False
        forks.register(self)

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._begin()
            self._inside.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if threading.get_ident() in self._inside:  # else it was left behind in the parent of a fork
                self._inside.remove(threading.get_ident())
            self._end()

    def _begin(self) -> None:
        threshold = gc.get_threshold()[0]
        self._has_begun = threshold != 0  # or it does not start by itself anyway
        if self._has_begun:
            self._threshold = self._threshold if threshold == _NEVER else threshold
            gc.set_threshold(_NEVER)

    def _end(self) -> None:
        if self._inside or not self._has_begun:
            return
        self._has_begun = False
        if gc.get_threshold()[0] == _NEVER:  # unless the program has set another one since
            gc.set_threshold(self._threshold)

    def after_fork(self) -> None:
        """Forgets the threads that a forked child lacks."""
        thread = threading.get_ident()
        self._inside = [each for each in self._inside if each == thread]
        self._end()


class FullCollections:
    """Starts a full collection after work that took many times as long as a collection.

    Args:
        usual: the seconds that one is thought to take, until one was measured.
        clock: returns the seconds of a clock that only goes forward.
    """

    def __init__(self, usual: float = 0.5, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = forks.lock()
        self._clock = clock
        self._seconds = usual
        self._worked = 0.0

    def follow(self, seconds: float) -> float:
        """Counts work that has just ended, and starts a full collection if one is due.

        Args:
            seconds: that the work took, a trace or a compilation.

        Returns:
            The seconds that the collection took; 0 if there was none.
        """
        if seconds < LEAST_WORK or not gc.isenabled() or gc.get_threshold()[0] in (0, _NEVER):
            return 0.0
        with self._lock:
            self._worked += seconds
            if self._worked < WORK_PER_COLLECTION * self._seconds:
                return 0.0
            self._worked = 0.0
        begun = self._clock()
        gc.collect()
        self._seconds = self._clock() - begun
        return self._seconds


_pause = Pause()


def without_collector() -> AbstractContextManager[None]:
    """Returns a context in which the collector does not start by itself, for code that makes very many objects."""
    return _pause


collect_behind = FullCollections().follow
"""Starts a full collection if that takes little beside the work so far, of which the last took the seconds given."""
