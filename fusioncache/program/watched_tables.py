"""Tables, such as the names of a module, and whether they still hold the very same things under the same keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, compress
from operator import attrgetter
from typing import Any

from fusioncache.program.identities import are_same
from fusioncache.program.snapshot import mark

Table = tuple[Mapping[Any, Any], Collection[Any]]
"""A table, and the keys whose values may be others."""

_module_of = attrgetter("__module__")


class WatchedTables:
    """Tables with what is in them at this moment, compared by identity, and the modules of the classes among that.

    Args:
        tables: each with the keys whose values may be others.
        list_others: returns what else has to be the same, now and later.
    """

    __slots__ = (
        "_classes",
        "_keys",
        "_list_others",
        "_marked",
        "_modules",
        "_others",
        "_tables",
        "_values",
        "_watched",
    )

    def __init__(self, tables: Iterable[Table], list_others: Callable[[], Iterable[Any]] = tuple):
        pairs = tuple(tables)
        self._tables: Sequence[Mapping[Any, Any]] = tuple(table for table, _ in pairs)
        self._marked = mark(self._tables)
        # Of each value, in order, whether it counts.
        self._watched = [key not in others for table, others in pairs for key in list(table)]
        self._keys = self._list_keys()
        if len(self._keys) != len(self._watched) + len(pairs):
            self._keys = [object()]  # another thread changed one meanwhile: nobody knows
        self._values = self._list_values()
        self._classes = [each for each in self._values if isinstance(each, type)]
        self._modules = [*map(_module_of, self._classes)]
        self._list_others = list_others
        self._others = [*list_others()]

    def hold(self) -> bool:
        """Tells whether there is the same in them."""
        return (
            are_same(self._list_keys(), self._keys)
            and are_same(self._list_values(), self._values)
            and [*map(_module_of, self._classes)] == self._modules
            and are_same([*self._list_others()], self._others)
        )

    def _list_keys(self) -> list[Any]:
        return [*chain.from_iterable(self._marked)]

    def _list_values(self) -> list[Any]:
        """Returns the values of tables whose keys are what they were."""
        return [*compress(chain.from_iterable(table.values() for table in self._tables), self._watched)]
