"""Why a key was missed: which of the keys that are known is nearest, and what keeps the two apart."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fusioncache.ir.ingredients import GRAPH
from fusioncache.observe.explain.difference import Difference, Texts, compare
from fusioncache.template.text import count_ops, hide_numbers

_LOOKED_INTO = 24
"""Keys whose texts are looked into. Ingredients' texts are compared as wholes, and their lengths, for all of them."""


@dataclass(frozen=True, slots=True)
class MissReason:
    """Why a key was missed.

    Attributes:
        nearest: the position, among the candidates, of the one that differs least; None if there were none.
        difference: in what they differ, the key being A and the candidate B; nothing if there was no candidate.
    """

    nearest: int | None
    difference: Difference

    def sentence(self, nearest: str) -> str:
        """Returns the reason for people, who know the nearest candidate, if there is one, by this name."""
        if self.nearest is None:
            return "No template was known before."
        return f"The nearest is {nearest}. {self.difference.sentence('here', 'there')}"


def explain_miss(key: Texts, candidates: Sequence[Texts]) -> MissReason:
    """Returns why a key is none of the candidates: the ingredients of each are given."""
    nearest = find_nearest(key, candidates)
    return MissReason(nearest, Difference(()) if nearest is None else compare(key, candidates[nearest]))


def find_nearest(key: Texts, candidates: Sequence[Texts]) -> int | None:
    """Returns the position of the key that differs least; of several, the last. None if there are no others.

    The search is linear: first by how many ingredients are equal, and apart from that by how much longer or shorter the
    others are; then, for the few best of each, by their ops, their lines and the ingredients that differ.
    """
    rough = [(*_compare_roughly(key, other), -position) for position, other in enumerate(candidates)]
    best = {-item[2] for item in heapq.nsmallest(_LOOKED_INTO, rough)}
    best |= {-item[2] for item in heapq.nsmallest(_LOOKED_INTO, rough, key=lambda item: (item[1], item[0], item[2]))}
    ops, lines = _count_ops(key), _count_lines(key)
    scores = {}
    for position in best:
        other = candidates[position]
        finely = _count_unshared(ops, _count_ops(other)), _count_unshared(lines, _count_lines(other))
        scores[position] = (*finely, *rough[position])
    return min(scores, key=lambda position: scores[position], default=None)


def _compare_roughly(key: Texts, other: Texts) -> tuple[int, int]:
    """Returns how many ingredients differ, and by how many characters the graph's are longer or shorter."""
    differ, longer = len(other.keys() - key.keys()), 0
    for name, text in key.items():
        its = other.get(name)
        if its != text:
            differ += 1
            if name in GRAPH:
                longer += abs(len(its or "") - len(text))
    return differ, longer


def _count_ops(key: Texts) -> Counter[str]:
    return count_ops(key.get("ops", ""))


def _count_lines(key: Texts) -> Counter[str]:
    return Counter(hide_numbers(f"{name} {line}") for name, text in key.items() for line in text.split("\n"))


def _count_unshared(a: Counter[str], b: Counter[str]) -> int:
    """Returns how many items only one of the two has."""
    return sum(((a - b) + (b - a)).values())
