"""In what two keys differ, in words: the graphs, then each ingredient of the environment as its kind has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from fusioncache.ir.ingredients import BACKEND, GRAPH, Comparison, IngredientKind, kind_of
from fusioncache.ir.key_text import read_changed, read_layouts, read_values, write_layouts
from fusioncache.observe.explain.change import NONE, Change, shorten_values
from fusioncache.observe.explain.graph_changes import find_graph_changes
from fusioncache.observe.explain.pairing import pair_graphs
from fusioncache.template.holes import read_holes
from fusioncache.template.skeleton import skeleton_of
from fusioncache.template.text import read_exactly

Texts = Mapping[str, str]
"""The ingredients of a key, name to text."""

_MOST_SIZES = 3
"""How many pairs of sizes a sentence names."""


@dataclass(frozen=True, slots=True)
class Difference:
    """In what two keys, A and B, differ.

    Attributes:
        changes: what differs of itself, and not because something else does; the graph's come first.
        sizes: of A with those of B, if that is all: then what is compiled for any sizes may serve both.
    """

    changes: tuple[Change, ...]
    sizes: tuple[tuple[int, int], ...] = ()

    def sentence(self, a: str = "in A", b: str = "in B") -> str:
        """Returns a sentence that names the first change and counts the others; ``a`` and ``b`` say where each is."""
        if not self.changes:
            return "They do not differ."
        if self.sizes:
            return f"They are the same but for sizes: {_write_sizes(self.sizes, a, b)}."
        change = self.changes[0]
        return f"They differ in {change.subject}: {change.a} {a}, {change.b} {b}{self._more()}."

    def summary(self) -> str:
        """Returns the same in fewer words, ingredient first, with A here and B there; empty if all is equal."""
        if not self.changes:
            return ""
        if self.sizes:
            return f"the same but for sizes: {_write_sizes(self.sizes, 'here', 'there')}"
        change = self.changes[0]
        where = "" if change.subject == f"the {change.ingredient}" else f"{change.subject}, "
        return f"{change.ingredient}: {where}{change.a} here, {change.b} there{self._more()}"

    def _more(self) -> str:
        others = len(self.changes) - 1
        return f", and in {others} other {'thing' if others == 1 else 'things'}" if others else ""


def compare(a: Texts, b: Texts) -> Difference:
    """Returns in what two keys differ, given their ingredients. Linear, but for the graphs' outputs.

    Texts of two formats say nothing about each other, so then the format is all that is named.
    """
    if a.get("format") != b.get("format"):
        return Difference((Change("format", "the format of the text", a.get("format", NONE), b.get("format", NONE)),))
    graph = () if all(a.get(name) == b.get(name) for name in GRAPH) else _compare_graphs(a, b)
    environments = tuple(_compare_environments(a, b))
    return Difference((*graph, *environments), _find_sizes(a, b) if graph and not environments else ())


def _find_sizes(a: Texts, b: Texts) -> tuple[tuple[int, int], ...]:
    """Returns the sizes of A with those of B in their places, each pair once, if the graphs differ in these alone.

    Nothing is returned if they differ in anything else, or cannot be read.
    """
    try:
        one, other = read_exactly(a), read_exactly(b)
    except ValueError:
        return ()
    if skeleton_of(one) != skeleton_of(other):
        return ()
    pairs = dict.fromkeys(zip(read_holes(one), read_holes(other), strict=True))
    differing = [(x, y) for x, y in pairs if x != y]
    sizes = tuple((x, y) for x, y in differing if isinstance(x, int) and isinstance(y, int))
    return sizes if len(sizes) == len(differing) else ()


def _write_sizes(sizes: tuple[tuple[int, int], ...], a: str, b: str) -> str:
    """Writes pairs of sizes; ``a`` and ``b`` say where each is."""
    shown = [f"{x} {a}, {y} {b}" for x, y in sizes[:_MOST_SIZES]]
    more = [f"and {len(sizes) - _MOST_SIZES} more"] if len(sizes) > _MOST_SIZES else []
    return "; ".join([*shown, *more])


def _compare_graphs(a: Texts, b: Texts) -> tuple[Change, ...]:
    try:
        changes = find_graph_changes(pair_graphs(a, b))
    except ValueError:
        changes = ()
    return changes or _compare_lines(a, b)


def _compare_lines(a: Texts, b: Texts) -> tuple[Change, ...]:
    """Returns the first line that differs, where the texts say more than was understood."""
    for name in GRAPH:
        x, y = a.get(name, "").split("\n"), b.get(name, "").split("\n")
        for number, (one, other) in enumerate(zip_longest(x, y, fillvalue=NONE), 1):
            if one != other:
                return (Change(name, f"the {name}, line {number}", one, other),)
    return ()


def _compare_environments(a: Texts, b: Texts) -> Iterator[Change]:
    """Yields a change for each ingredient, package, option or argument that differs, without what follows from it."""
    if a.get(BACKEND) != b.get(BACKEND):
        # All else follows from it.
        yield _change(kind_of(BACKEND), None, a.get(BACKEND), b.get(BACKEND))
        return
    for name in dict.fromkeys([*a, *b]):
        kind = kind_of(name)
        if name in GRAPH or a.get(name) == b.get(name):
            continue
        if kind.follows is None or a.get(kind.follows) == b.get(kind.follows):
            yield from _compare_ingredients(kind, a.get(name), b.get(name))


def _compare_ingredients(kind: IngredientKind, a: str | None, b: str | None) -> Iterator[Change]:
    parts: list[Change] = []
    if a is not None and b is not None:
        if kind.comparison is Comparison.VALUES:
            parts = _compare_values(kind, read_values(a), read_values(b))
        elif kind.comparison is Comparison.LAYOUTS:
            parts = _compare_layouts(kind, a, b)
    yield from parts or [_change(kind, None, a, b)]


def _compare_values(kind: IngredientKind, a: Texts, b: Texts) -> list[Change]:
    differing = [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]
    return [_change(kind, kind.phrase.format(name), *_with_default(a.get(name), b.get(name))) for name in differing]


def _with_default(a: str | None, b: str | None) -> tuple[str | None, str | None]:
    """Returns two values of one setting. One that is not in its list has the default, which stands by the other."""
    x, y = (read_changed(text or "") for text in (a, b))
    return (x[0] if x else y[1] if y and a is None else a), (y[0] if y else x[1] if x and b is None else b)


def _compare_layouts(kind: IngredientKind, a: str, b: str) -> list[Change]:
    try:
        x, y = read_layouts(a), read_layouts(b)
    except ValueError:
        return []
    if len(x) != len(y):
        return []
    return [
        _change(kind, f"{kind.subject} of input %{index}", write_layouts((one,)), write_layouts((other,)))
        for index, (one, other) in enumerate(zip(x, y, strict=True))
        if one != other
    ]


def _change(kind: IngredientKind, subject: str | None, a: str | None, b: str | None) -> Change:
    x, y = (NONE if text is None else text.replace("\n", "; ") for text in (a, b))
    return Change(kind.name, subject or kind.subject, *shorten_values(x or "empty", y or "empty"))
