"""What a forked child does before it uses what its parent had in memory.

A fork copies memory and of all threads only the one that forks. Locks that the others held would stay locked for ever,
and what they were at would stay half done. So every lock of the package is made here, and every object with more than a
lock to set right says so here.

Here is also the map that threads share in which each entry is made once.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol


class Inherited(Protocol):
    """An object that a child takes over from its parent."""

    def after_fork(self) -> None:
        """Called in the child, when locks work again. What was going on in other threads will never end."""


def lock() -> threading.RLock:
    """Returns a lock between threads that in a forked child is free, unless the thread that forked holds it.

    It is one that its thread may take again: only such a lock knows who holds it.
    """
    new = threading.RLock()
    locks.add(new)
    return new


def register(thing: Inherited) -> None:
    """Registers an object whose ``after_fork`` is called in forked children, in no order, for as long as it lives."""
    _inherited.add(thing)


# Of the process, as its threads are.
locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()


def after_fork() -> None:
    """Frees the locks in a forked child, and has every object that is registered set itself right."""
    for each in list(locks):
        # As the threading module does with its own locks; there is no public name for either.
        if not each._is_owned():  # type: ignore[attr-defined]
            each._at_fork_reinit()  # type: ignore[attr-defined]
    for thing in list(_inherited):  # all of them kept alive until the last is done
        thing.after_fork()


IMPORT_SECONDS = 2.0
"""How long a fork waits for another thread that imports."""


class ImportGuard:
    """Held by a thread beside the program while it imports, so that the program is not forked meanwhile.

    Python locks each module while it is imported. In a child that is forked then, the lock of that module would stay
    locked, and the first import of it there would wait for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held = False
        os.register_at_fork(before=self._acquire, after_in_parent=self._release, after_in_child=self._reset)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _acquire(self) -> None:
        self._held = self._lock.acquire(timeout=IMPORT_SECONDS)

    def _release(self) -> None:
        if self._held:
            self._lock.release()

    def _reset(self) -> None:
        if self._held:
            self._lock.release()
        else:
            self._lock._at_fork_reinit()  # type: ignore[attr-defined]


# Of the process, as its modules are.
imports = ImportGuard()

os.register_at_fork(after_in_child=after_fork)


class LruMap[K: Hashable, V]:
    """Maps keys to values that are made on demand. Least recently used leaves first. Safe under threads.

    When several threads ask for the same missing key at once, one makes the value and the others wait for it.
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
        """Returns the value of ``key`` and whether it was there already.

        Raises:
            Exception: whatever ``make`` raises; the next one to ask then tries again.
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
        """Returns the value of ``key``; None if there is none. Does not wait for a thread that makes it."""
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
        """Forgets every value. Values in use elsewhere live on."""
        with self._lock:
            self._values.clear()
