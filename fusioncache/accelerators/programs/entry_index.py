"""Which of a compiled function's entries may be for a call: those whose prologues compare no size that is another one.

Thunder calls the prologue of one entry after the other, last to first, until one does not raise. With an entry for each
length these are thousands of calls that raise. What a prologue compares stands in its text, and what it passed for are
the sizes of the call that its entry was made for: an entry with another size at such a place is left out. The prologues
of all others decide, as ever. So a mistake here makes a program too many, and never has a wrong one run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from fusioncache.accelerators.programs.introspection import are_same
from fusioncache.accelerators.sizes.arguments import ArgumentSizes, Place

_TAKEN = re.compile(r"^  (\w+)(?:: \"[^\"\n]*\")? = (\w+)\[(?:(\d+)|'(\w+)')\]$", re.MULTILINE)
_TENSOR = re.compile(r"^  check_tensor_(?:shape_and_)?metadata\((\w+), \([\d, ]*\), ", re.MULTILINE)
_NUMBER = re.compile(r"^  check_number_type_and_value\((\w+), \d+\)$", re.MULTILINE)


def find_compared(prologue: str) -> frozenset[Place]:
    """Returns the arguments of which a prologue compares all sizes with numbers, as its text says."""
    ways: dict[str, tuple[int | str, ...]] = {"args": (), "kwargs": ()}
    for name, owner, number, key in _TAKEN.findall(prologue):
        if owner in ways:
            ways[name] = (*ways[owner], int(number) if number else key)
    compared = [ways[name] for name in (*_TENSOR.findall(prologue), *_NUMBER.findall(prologue)) if name in ways]
    return frozenset(way if len(way) > 1 else way[0] for way in compared)


@dataclass(slots=True, eq=False)
class _Row:
    """An entry of a compiled function.

    Attributes:
        entry: one of Thunder's.
        places: the arguments whose sizes tell whether it may be for a call.
        sizes: of these, of the call that it was made for.
        is_sure: whether its prologue compares all of them.
        key: the digest of the key by which it can be had again without being derived; None if it cannot.
        used: when it was last tried, by a clock that counts.
    """

    entry: Any
    places: tuple[Place, ...]
    sizes: tuple[Any, ...]
    is_sure: bool
    key: str | None
    used: int


class EntryIndex:
    """The entries of one compiled function, by the sizes of the calls that they were made for."""

    __slots__ = ("_clock", "_entries", "_rows", "_tables", "_unsure")

    def __init__(self, rows: Iterable[_Row] = (), clock: Iterator[int] | None = None) -> None:
        self._clock = clock or count()
        self._rows: list[_Row] = []
        self._entries: list[Any] = []
        self._tables: defaultdict[tuple[Place, ...], defaultdict[tuple[Any, ...], list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._unsure: list[int] = []
        for row in rows:
            self._add(row)

    def append(self, entry: Any, sizes: ArgumentSizes, compared: Set[Place] | None, key: str | None = None) -> None:
        """Takes note of the entry that comes behind all that it knows.

        Args:
            entry: one of Thunder's.
            sizes: of the arguments that it was made for.
            compared: the arguments of which its prologue compares all sizes; None if that is not known.
            key: the digest of the key by which it can be had again without being derived; None if it cannot.
        """
        places = tuple(place for place in sizes if compared is None or place in compared)
        made_for = tuple(sizes[place] for place in places)
        self._add(_Row(entry, places, made_for, compared is not None, key, next(self._clock)))

    def _add(self, row: _Row) -> None:
        number = len(self._rows)
        self._rows.append(row)
        self._entries.append(row.entry)
        self._tables[row.places][row.sizes].append(number)
        if not row.is_sure:
            self._unsure.append(number)

    def find_surplus(self, most: int, may_leave: Callable[[Any], bool]) -> tuple[Any, str] | None:
        """Returns an entry that can be had again, and its key, if there are more than so many of these.

        It is the one that was not used for longest.

        Args:
            most: how many there may be.
            may_leave: tells of an entry whether it may be the one.
        """
        rows = [row for row in self._rows if row.key is not None]
        if len(rows) <= most:
            return None
        oldest = next((row for row in sorted(rows, key=lambda row: row.used) if may_leave(row.entry)), None)
        return None if oldest is None or oldest.key is None else (oldest.entry, oldest.key)

    def without(self, entry: Any) -> EntryIndex:
        """Returns an index of all entries but one. The iterators of this one go on with what they know."""
        return EntryIndex((row for row in self._rows if row.entry is not entry), self._clock)

    def order(self, entries: Sequence[Any], sizes: ArgumentSizes) -> Iterator[Any]:
        """Yields the entries that may be for a call, last to first; behind them those of which that is not known.

        Args:
            entries: of the function. If they are not those that were appended, none of them is left out.
            sizes: of the arguments of the call.
        """
        first, others = self._divide(sizes)
        held = [*entries]  # another thread may drop one meanwhile
        found = [number for number in first if number < len(held) and held[number] is self._entries[number]]
        for number in chain(found, self._list_others(held, found, others)):
            entry = held[number]
            if number < len(self._rows) and self._rows[number].entry is entry:
                self._rows[number].used = next(self._clock)
            yield entry

    def _list_others(self, held: Sequence[Any], found: list[int], others: list[int]) -> Iterator[int]:
        rest = others if are_same(held, self._entries) else range(len(held))
        yield from sorted({*rest}.difference(found), reverse=True)

    def _divide(self, sizes: ArgumentSizes) -> tuple[list[int], list[int]]:
        """Returns the entries for such sizes, last to first, and those of which it is not known whether they are."""
        first, others = list[int](), [*self._unsure]
        for places, table in tuple(self._tables.items()):  # another thread may append an entry meanwhile
            if all(place in sizes for place in places):
                first += table.get(tuple(sizes[place] for place in places), ())
            else:
                others += chain.from_iterable(tuple(table.values()))
        return sorted(first, reverse=True), others
