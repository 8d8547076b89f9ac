"""Tables, such as the names of a module, and whether they still hold the very same things under the same keys."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, compress
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from fusioncache.program.fields import Fields
from fusioncache.program.snapshot import are_same, mark

Table = tuple[Mapping[Any, Any], Collection[Any]]
"""A table, and the keys whose values may be others."""

_module_of = attrgetter("__module__")


def _find_dictionary(table: Mapping[Any, Any]) -> Any:
    """Returns the dictionary behind a table: the namespace of a class is only a view of one."""
    return gc.get_referents(table)[0] if type(table) is MappingProxyType else table


class WatchedTables:
    """Tables with what is in them at this moment, compared by identity, and the modules of the classes among that.

    Args:
        tables: each with the keys whose values may be others.
        list_others: returns what else has to be the same, now and later.
    """

    __slots__ = (
        "_classes",
        "_fields",
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
        self._fields = Fields([*map(_find_dictionary, self._tables)])
        # Of each value, in order, whether it counts.
        self._watched = [key not in others for table, others in pairs for key in list(table)]
        self._keys = self._list_keys()
        if len(self._keys) != len(self._watched) + len(pairs):
            self._keys = [object()]  # another thread changed one meanwhile: nobody knows
        self._values = self._list_values()
        self._fields.confirm()
        self._classes = [each for each in self._values if isinstance(each, type)]
        self._modules = [*map(_module_of, self._classes)]
        self._list_others = list_others
        self._others = [*list_others()]

    def hold(self) -> bool:
        """Tells whether there is the same in them."""
        return (
            self._fields.hold(self._hold_the_same)
            and [*map(_module_of, self._classes)] == self._modules
            and are_same([*self._list_others()], self._others)
        )

    def _hold_the_same(self) -> bool:
        return are_same(self._list_keys(), self._keys) and are_same(self._list_values(), self._values)

    def _list_keys(self) -> list[Any]:
        return [*chain.from_iterable(self._marked)]

    def _list_values(self) -> list[Any]:
        """Returns the values of tables whose keys are what they were."""
        return [*compress(chain.from_iterable(table.values() for table in self._tables), self._watched)]
