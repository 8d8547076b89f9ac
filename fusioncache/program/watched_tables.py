"""Tables, such as the names of a module, and whether they still hold the very same things under the same keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, compress
from operator import attrgetter
from typing import Any

from fusioncache.program.snapshot import are_same, mark

_module_of = attrgetter("__module__")


class WatchedTables:
    """Tables with what is in them at this moment, compared by identity, and the modules of the classes among that.

    Args:
        tables: each with the keys whose values may be others.
    """

    __slots__ = ("_classes", "_keys", "_marked", "_modules", "_tables", "_values", "_watched")

    def __init__(self, tables: Iterable[tuple[Mapping[Any, Any], Collection[Any]]]):
        pairs = tuple(tables)
        self._tables: Sequence[Mapping[Any, Any]] = tuple(table for table, _ in pairs)
        self._marked = mark(self._tables)
        # Of each value, in order, whether it counts.
        self._watched = [key not in others for table, others in pairs for key in table]
        self._keys = self._list_keys()
        self._values = self._list_values()
        self._classes = [each for each in self._values if isinstance(each, type)]
        self._modules = [*map(_module_of, self._classes)]

    def hold(self) -> bool:
        """Tells whether there is the same in them."""
        return (
            are_same(self._list_keys(), self._keys)
            and are_same(self._list_values(), self._values)
            and [*map(_module_of, self._classes)] == self._modules
        )

    def _list_keys(self) -> list[Any]:
        return [*chain.from_iterable(self._marked)]

    def _list_values(self) -> list[Any]:
        """Returns the values of tables whose keys are what they were."""
        return [*compress(chain.from_iterable(table.values() for table in self._tables), self._watched)]
