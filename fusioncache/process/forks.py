"""Repair of locks and objects in a forked child, before it uses them.

A fork copies memory, but only the forking thread. Locks of other threads would stay locked for ever, and their work
unfinished. So all locks of the package are made here, and objects that need more repair register here.

Also contains ``LruMap``, a map for threads that makes each value once.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol


class Inherited(Protocol):
    """An object that a forked child inherits from its parent."""

    def after_fork(self) -> None:
        """Called in the child, after locks were repaired. Work of other threads will never finish."""


def lock() -> threading.RLock:
    """Returns a lock between threads that is free in a forked child, unless the forking thread holds it.

    The lock is reentrant, because only reentrant locks record their owner.
    """
    new = threading.RLock()
    locks.add(new)
    return new


def register(thing: Inherited) -> None:
    """Registers an object for its lifetime: forked children call its ``after_fork``, in no particular order."""
    _inherited.add(thing)


# Global state, because threads belong to the process.
locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()


def after_fork() -> None:
    """Frees the locks in a forked child, then calls ``after_fork`` of every registered object."""
    for each in list(locks):
        # As the threading module does with its locks. Both methods are private.
        if not each._is_owned():  # type: ignore[attr-defined]
            each._at_fork_reinit()  # type: ignore[attr-defined]
    for thing in list(_inherited):  # the list keeps all of them alive until the last call
        thing.after_fork()


IMPORT_SECONDS = 2.0
"""How long a fork waits for another thread to finish an import."""


# Global state, because modules belong to the process.
imports = lock()
"""A lock that a background thread holds while it imports, so that the program does not fork meanwhile.

Python locks each module during its import. If the process forked then, the lock would stay locked in the child, and the
child's first import of the module would wait for ever.
"""


def _await_imports() -> None:
    """Takes the lock before a fork, unless another thread imports for too long."""
    imports.acquire(timeout=IMPORT_SECONDS)


def _allow_imports() -> None:
    """Releases the lock after a fork, in the parent and in the child."""
    if imports._is_owned():  # type: ignore[attr-defined]  # else it was not taken
        imports.release()


os.register_at_fork(before=_await_imports, after_in_parent=_allow_imports, after_in_child=_allow_imports)
os.register_at_fork(after_in_child=after_fork)


class LruMap[K: Hashable, V]:
    """A thread-safe map from keys to values that are made on demand. Evicts the least recently used value.

    If several threads request the same missing key at once, one makes the value and the others wait for it.
    """

    def __init__(self, capacity: int):
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self._capacity = capacity
        self._values: OrderedDict[K, V] = OrderedDict()
        self._making: dict[K, threading.RLock] = {}
        self._lock = lock()

    def __len__(self) -> int:
        return len(self._values)

    def get_or_make(self, key: K, make: Callable[[], V]) -> tuple[V, bool]:
        """Returns the value of ``key``, and True if it existed before.

        Raises:
            Exception: any error of ``make``. The next request calls ``make`` again.
        """
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key], True
            making = self._making.setdefault(key, lock())
        with making:
            with self._lock:
                if key in self._values:
                    return self._values[key], True
            try:
                value = make()
            except BaseException:
                with self._lock:
                    self._making.pop(key, None)
                raise
            with self._lock:
                self._values[key] = value
                self._making.pop(key, None)
                while len(self._values) > self._capacity:
                    self._values.popitem(last=False)
            return value, False

    def get(self, key: K) -> V | None:
        """Returns the value of ``key``, or None. Does not wait for a thread that is making it."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def values(self) -> tuple[V, ...]:
        """Returns all values, the least recently used first."""
        with self._lock:
            return tuple(self._values.values())

    def clear(self) -> None:
        """Removes all values. Values that are referenced elsewhere stay alive."""
        with self._lock:
            self._values.clear()
