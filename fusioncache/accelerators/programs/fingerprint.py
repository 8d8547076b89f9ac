"""Detects whether tables hold the same objects as before, by comparing these by identity."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from operator import is_
from typing import Any

_MARK = (object(),)
"""Stands behind each table, so that an item that moves from the end of one to the next is noticed."""


class Fingerprint:
    """What tables hold at this moment. It keeps all of it alive, so that no identity is used twice.

    Args:
        tables: containers, or views of them.
        read: returns what else matters, now and later.
    """

    def __init__(self, tables: Iterable[Iterable[Any]] = (), read: Callable[[], Iterable[Any]] = tuple):
        self._tables = [*chain.from_iterable((table, _MARK) for table in tables)]
        self._read = read
        self._items = [*self._list_items()]

    def _list_items(self) -> Iterable[Any]:
        return chain(chain.from_iterable(self._tables), self._read())

    def holds(self) -> bool:
        """True if all of it is the same now. What cannot be read any more is not."""
        try:
            end = (object(),)
            return all(map(is_, chain(self._list_items(), end), chain(self._items, end)))
        except Exception:  # a module that is gone, a dict that another thread changes
            return False
