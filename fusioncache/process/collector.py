"""Python's garbage collector: paused while very many long-lived objects are made, which then count as old.

In a pause, new objects start no collection, in any thread of the process. Reference counts still free memory; only
cycles wait. ``gc.isenabled`` does not change, because a program may read or set it meanwhile; only the threshold does.

Traces and compilations leave very many objects that live long. Python would visit them twice more while they count as
young. It would then start a full collection, because the old objects have grown by a quarter: one of the next steps
would take many times as long as others. So a long pause ends with one collection of the new objects. Those that are
left become old at once, and do not count as growth. So that old garbage does not pile up, and keeps no memory for long,
a full collection follows when pauses have taken a minute in all, of which it is a small part.
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

SECONDS_PER_COLLECTION = 60.0
"""How many seconds of long pauses a full collection follows. It takes one second for about two million objects."""

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
        self._seconds = 0.0
        self._is_frozen = False
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
            seconds = time.monotonic() - self._start if self._end() else 0.0
        if seconds > LEAST_SECONDS and gc.isenabled() and gc.get_threshold()[0]:
            self._follow(seconds)

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

    def _follow(self, seconds: float) -> None:
        """Collects garbage after a pause that took so long, and makes all other objects old."""
        self._seconds += seconds
        if self._seconds >= SECONDS_PER_COLLECTION:
            self._seconds = 0.0
            gc.collect()
            return
        gc.collect(0)
        if gc.get_freeze_count() <= MOST_FROZEN:  # else the program's objects would thaw
            self._is_frozen = True
            try:
                gc.freeze()
            finally:
                gc.unfreeze()
                self._is_frozen = False

    def after_fork(self) -> None:
        """Removes the threads that a forked child lacks, and thaws what one of them has frozen."""
        if self._is_frozen:
            gc.unfreeze()
            self._is_frozen = False
        thread = threading.get_ident()
        self._inside = [each for each in self._inside if each == thread]
        self._end()


_pause = Pause()


def without_collector() -> AbstractContextManager[None]:
    """Returns a context in which the collector does not start automatically, for code that makes very many objects."""
    return _pause
