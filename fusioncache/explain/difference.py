"""In what two keys differ, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusioncache.explain.change import NONE, Change
from fusioncache.explain.environment import environment_changes
from fusioncache.explain.graphs import graph_changes
from fusioncache.explain.parts import GRAPH, same_graph
from fusioncache.explain.reading import read_graph


@dataclass(frozen=True, slots=True)
class Difference:
    """In what two keys, A and B, differ.

    Attributes:
        changes: what differs of itself, and not because something else does; the graph's come first.
    """

    changes: tuple[Change, ...]

    def sentence(self, a: str = "A", b: str = "B") -> str:
        """One sentence that names the first change, and says how many others there are.

        Args:
            a: how to call A's side, with the preposition if that is not ``in``.
            b: how to call B's.
        """
        if not self.changes:
            return "They do not differ."
        return f"They differ in {self._first(a, b)}{self._more()}."

    def reason(self) -> str:
        """The same in fewer words, ingredient first, for A's side being here and B's there. Empty if all is equal."""
        if not self.changes:
            return ""
        change = self.changes[0]
        where = "" if change.place == f"the {change.ingredient}" else f"{change.place}, "
        return f"{change.ingredient}: {where}{change.a} here, {change.b} there{self._more()}"

    def _first(self, a: str, b: str) -> str:
        change = self.changes[0]
        sides = [f"in {side}" if side in ("A", "B") else side for side in (a, b)]
        return f"{change.place}: {change.a} {sides[0]}, {change.b} {sides[1]}"

    def _more(self) -> str:
        others = len(self.changes) - 1
        return f", and in {others} other {'thing' if others == 1 else 'things'}" if others else ""


def compare(a: Mapping[str, str], b: Mapping[str, str]) -> Difference:
    """In what two keys differ, given their ingredients, name to text. Linear, but for the graphs' outputs.

    Texts of two formats say nothing about each other, so then the format is all that is named.
    """
    if a.get("format") != b.get("format"):
        return Difference((Change("format", "the format of the text", a.get("format", NONE), b.get("format", NONE)),))
    graph = () if same_graph(a, b) else _graph_changes(a, b)
    return Difference((*graph, *environment_changes(a, b)))


def _graph_changes(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[Change, ...]:
    try:
        changes = graph_changes(read_graph(a), read_graph(b))
    except ValueError:
        changes = ()
    return changes or _unread(a, b)


def _unread(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[Change, ...]:
    """The first line that differs, where the texts say more than was understood."""
    for name in GRAPH:
        x, y = a.get(name, "").split("\n"), b.get(name, "").split("\n")
        for place in range(max(len(x), len(y))):
            one, other = (text[place] if place < len(text) else NONE for text in (x, y))
            if one != other:
                return (Change(name, f"the {name}, line {place + 1}", one, other),)
    return ()
