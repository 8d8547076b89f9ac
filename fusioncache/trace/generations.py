"""Numbers the programs of each function that Thunder compiles."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from fusioncache.cache.sizes import Generation
from fusioncache.process import forks


class Generations:
    """The programs of the functions that one transform takes part in."""

    def __init__(self) -> None:
        self._last: WeakKeyDictionary[Any, Generation] = WeakKeyDictionary()
        self._lock = forks.lock()

    def begin(self, compile_data: Any) -> Generation:
        """Returns the next program of a function.

        Args:
            compile_data: Thunder's, of the function; None if that is not known.
        """
        if compile_data is None:
            return Generation(object(), 0)
        with self._lock:
            last = self._last.get(compile_data)
            new = Generation(object(), 0) if last is None else Generation(last.function, last.number + 1)
            self._last[compile_data] = new
            return new
