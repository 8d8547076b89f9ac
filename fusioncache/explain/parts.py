"""The ingredients of a key, from wherever they were left."""

from __future__ import annotations

from collections.abc import Mapping

GRAPH = ("format", "inputs", "ops", "constants", "attributes", "outputs")
"""The ingredients that say what is computed. All others are of the environment."""


def unframed(text: str) -> dict[str, str]:
    """The ingredients of a key's whole text: the inverse of ``framed`` in ``template/key.py``, part by part.

    Raises:
        ValueError: if it is no such text.
    """
    parts: dict[str, str] = {}
    place = 0
    while place < len(text):
        head, found, _ = text[place:].partition("\n")
        name, _, length = head.rpartition(" ")
        if not (found and name and length.isdecimal()):
            raise ValueError("no text of a key")
        start = place + len(head) + 1
        place = start + int(length) + 1
        if place > len(text) or text[place - 1] != "\n" or name in parts:
            raise ValueError("no text of a key")
        parts[name] = text[start : place - 1]
    return parts


def same_graph(a: Mapping[str, str], b: Mapping[str, str]) -> bool:
    """Whether both compute the same."""
    return all(a.get(name) == b.get(name) for name in GRAPH)
