"""Python's garbage collector: paused while very many long-lived objects are made, and started after long work.

In a pause, new objects start no collection, in any thread of the process. Reference counts still free memory; only
cycles wait. ``gc.isenabled`` does not change, because a program may read or set it meanwhile; only the threshold does.

Python starts a full collection, which visits all objects, once the long-lived ones have grown by a quarter. Traces and
compilations leave that many, so that a later step with such a collection takes many times as long as others. So a full
collection is started after some of them, where it is a small part of the time.
"""

from __future__ import annotations

import gc
import threading
import time
from contextlib import AbstractContextManager

from fusioncache.process import forks

_NEVER = 2_147_483_629
"""A threshold that is never reached, and that a program is unlikely to set itself."""

LEAST_WORK = 0.05
"""Seconds of the shortest work that counts. Shorter work leaves few objects."""

WORK_PER_COLLECTION = 20
"""A full collection is due once the work took this many times as long as a collection."""

USUAL_SECONDS = 0.5
"""The assumed seconds of a collection until one was measured."""


class Pause:
    """A context, shared by any number of threads, in which the collector does not start automatically."""

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
            if threading.get_ident() in self._inside:  # else it was removed after a fork
                self._inside.remove(threading.get_ident())
            self._end()

    def _begin(self) -> None:
        threshold = gc.get_threshold()[0]
        self._has_begun = threshold != 0  # with 0 it does not start automatically anyway
        if self._has_begun:
            self._threshold = self._threshold if threshold == _NEVER else threshold
            gc.set_threshold(_NEVER)

    def _end(self) -> None:
        if self._inside or not self._has_begun:
            return
        self._has_begun = False
        if gc.get_threshold()[0] == _NEVER:  # else the program has set another one meanwhile
            gc.set_threshold(self._threshold)

    def after_fork(self) -> None:
        """Removes the threads that a forked child lacks."""
        thread = threading.get_ident()
        self._inside = [each for each in self._inside if each == thread]
        self._end()


class FullCollections:
    """Starts a full collection after work that took many times as long as a collection."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._seconds = USUAL_SECONDS
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
        begun = time.monotonic()
        gc.collect()
        self._seconds = time.monotonic() - begun
        return self._seconds


_pause = Pause()


def without_collector() -> AbstractContextManager[None]:
    """Returns a context in which the collector does not start automatically, for code that makes very many objects."""
    return _pause


collect_if_due = FullCollections().follow
"""Counts work that took the given seconds, and starts a full collection if that is a small part of the work so far."""
