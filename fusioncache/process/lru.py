"""A bounded map that makes each entry once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from fusioncache.process import forks


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
        self._lock = forks.lock()

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
            making = self._making.setdefault(key, forks.lock())
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

    def find(self, key: K) -> V | None:
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
