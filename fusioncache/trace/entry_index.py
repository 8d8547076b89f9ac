"""Which of a compiled function's entries may be for a call: those whose prologues compare no size that is another one.

Thunder calls the prologue of one entry after the other, last to first, until one does not raise. With an entry for each
length these are thousands of calls that raise. What a prologue compares stands in its text, and what it passed for are
the sizes of the call that its entry was made for: an entry with another size at such a place is left out. The prologues
of all others decide, as ever. So a mistake here makes a program too many, and never has a wrong one run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from itertools import chain
from typing import Any

from fusioncache.program.snapshot import are_same
from fusioncache.tracing.lengths.arguments import ArgumentSizes, Place

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


class EntryIndex:
    """The entries of one compiled function, by the sizes of the calls that they were made for."""

    __slots__ = ("_entries", "_tables", "_unsure")

    def __init__(self) -> None:
        self._entries: list[Any] = []
        self._tables: defaultdict[tuple[Place, ...], defaultdict[tuple[Any, ...], list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._unsure: list[int] = []

    def append(self, entry: Any, sizes: ArgumentSizes, compared: Set[Place] | None) -> None:
        """Takes note of the entry that comes behind all that it knows.

        Args:
            entry: one of Thunder's.
            sizes: of the arguments that it was made for.
            compared: the arguments of which its prologue compares all sizes; None if that is not known.
        """
        number = len(self._entries)
        self._entries.append(entry)
        places = tuple(place for place in sizes if compared is None or place in compared)
        self._tables[places][tuple(sizes[place] for place in places)].append(number)
        if compared is None:
            self._unsure.append(number)

    def order(self, entries: Sequence[Any], sizes: ArgumentSizes) -> Iterator[Any]:
        """Yields the entries that may be for a call, last to first; behind them those of which nobody knows it.

        Args:
            entries: of the function. If they are not those that were appended, none of them is left out.
            sizes: of the arguments of the call.
        """
        first, others = self._divide(sizes)
        found = [number for number in first if number < len(entries) and entries[number] is self._entries[number]]
        yield from (entries[number] for number in found)
        rest = others if are_same(entries, self._entries) else range(len(entries))
        yield from (entries[number] for number in sorted({*rest}.difference(found), reverse=True))

    def _divide(self, sizes: ArgumentSizes) -> tuple[list[int], list[int]]:
        """Returns the entries for such sizes, last to first, and those of which nobody knows whether they are."""
        first, others = list[int](), [*self._unsure]
        for places, table in tuple(self._tables.items()):  # another thread may append an entry meanwhile
            if all(place in sizes for place in places):
                first += table.get(tuple(sizes[place] for place in places), ())
            else:
                others += chain.from_iterable(tuple(table.values()))
        return sorted(first, reverse=True), others
