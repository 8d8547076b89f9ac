"""Which of many keys is most like a given one."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from fusioncache.explain.parts import GRAPH

_LOOKED_INTO = 24
"""Keys whose texts are looked into. Ingredients' texts are compared as wholes, and their lengths, for all of them."""

_OP_NAME = re.compile(r" = ([^\s(]+)\(")
_NUMBER = re.compile(r"%\d+|(?:constant|attribute)\d+")


def nearest(key: Mapping[str, str], others: Sequence[Mapping[str, str]]) -> int | None:
    """The place of the key that differs least; of several, the last. None if there are no others.

    Linear: first by how many ingredients are equal, and apart from that by how much longer or shorter the others are;
    then, for the few best of each, by their ops, their lines and the ingredients that differ.

    Args:
        key: the ingredients, name to text.
        others: those of the other keys.
    """
    rough = [(*_rough(key, other), -place) for place, other in enumerate(others)]
    best = {-item[2] for item in heapq.nsmallest(_LOOKED_INTO, rough)}
    best |= {-item[2] for item in heapq.nsmallest(_LOOKED_INTO, rough, key=lambda item: (item[1], item[0], item[2]))}
    ops, lines = _ops(key), _lines(key)
    return min(best, key=lambda place: (*_fine(ops, lines, others[place]), *rough[place]), default=None)


def _rough(key: Mapping[str, str], other: Mapping[str, str]) -> tuple[int, int]:
    """How many ingredients differ, and by how many characters the graph's are longer or shorter."""
    differ, longer = len(other.keys() - key.keys()), 0
    for name, text in key.items():
        its = other.get(name)
        if its != text:
            differ += 1
            if name in GRAPH:
                longer += abs(len(its or "") - len(text))
    return differ, longer


def _fine(ops: Counter[str], lines: Counter[str], other: Mapping[str, str]) -> tuple[int, int]:
    """How many ops and how many lines only one of the two has."""
    return _apart(ops, _ops(other)), _apart(lines, _lines(other))


def _ops(key: Mapping[str, str]) -> Counter[str]:
    return Counter(_OP_NAME.findall(key.get("ops", "")))


def _lines(key: Mapping[str, str]) -> Counter[str]:
    """All lines, without the numbers of values and literals, which depend on all other lines."""
    return Counter(_NUMBER.sub("%", f"{name} {line}") for name, text in key.items() for line in text.split("\n"))


def _apart(a: Counter[str], b: Counter[str]) -> int:
    return sum(((a - b) + (b - a)).values())
