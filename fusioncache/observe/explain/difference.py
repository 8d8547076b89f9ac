"""The differences of two keys: in words, from the nearest key, and of keys that differ only in sizes."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from fusioncache.ir import Const, Graph, Value
from fusioncache.ir.keys import (
    BACKEND,
    GRAPH,
    Comparison,
    IngredientKind,
    kind_of,
    read_changed,
    read_layouts,
    read_values,
    write_layouts,
)
from fusioncache.observe.explain.changes import NONE, KeyChange, find_graph_changes, shorten_values, write_difference
from fusioncache.observe.explain.pairing import Pairing
from fusioncache.template.generalization import make_family
from fusioncache.template.skeleton import Skeleton, skeleton_of
from fusioncache.template.text import (
    count_ops,
    hide_numbers,
    input_lines,
    op_lines,
    output_lines,
    read_exactly,
    read_graph,
)

Texts = Mapping[str, str]
"""The ingredients of a key: name to text."""

_MOST_SIZES = 3
"""How many pairs of sizes a sentence lists."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences between two keys, A and B.

    Attributes:
        changes: the root changes, without those that follow from others; the graph's come first.
        sizes: pairs of A's and B's sizes, if nothing else differs: then a function for any sizes may serve both.
    """

    changes: tuple[KeyChange, ...]
    sizes: tuple[tuple[int, int], ...] = ()

    def sentence(self, a: str = "in A", b: str = "in B") -> str:
        """Returns a sentence with the first change and the number of others; ``a`` and ``b`` name the sides."""
        if not self.changes:
            return "They do not differ."
        if self.sizes:
            return f"They are the same but for sizes: {_write_sizes(self.sizes, a, b)}."
        change = self.changes[0]
        return write_difference(change.subject, f"{change.a} {a}, {change.b} {b}", len(self.changes) - 1)


def compare(a: Texts, b: Texts) -> Difference:
    """Returns the differences between two keys, given their ingredients. Linear, except in the graphs' outputs.

    Texts of different formats cannot be compared, so then the format is the only change.
    """
    if a.get("format") != b.get("format"):
        change = _change(kind_of("format"), "the format of the text", a.get("format"), b.get("format"))
        return Difference((change,))
    graph = () if all(a.get(name) == b.get(name) for name in GRAPH) else _compare_graphs(a, b)
    environments = tuple(_compare_environments(a, b))
    return Difference((*graph, *environments), _find_sizes(a, b) if graph and not environments else ())


def _find_sizes(a: Texts, b: Texts) -> tuple[tuple[int, int], ...]:
    """Returns the pairs of A's and B's sizes at the same place, each once; empty if the graphs differ otherwise."""
    relatives = find_relatives([{name: key[name] for name in GRAPH if name in key} for key in (a, b)])
    pairs = dict.fromkeys(varying.values for each in relatives for varying in each.varying)
    sizes = tuple((x, y) for x, y in pairs if isinstance(x, int) and isinstance(y, int))
    return sizes if len(sizes) == len(pairs) else ()


def _write_sizes(sizes: tuple[tuple[int, int], ...], a: str, b: str) -> str:
    """Returns pairs of sizes as text; ``a`` and ``b`` say where each is."""
    shown = [f"{x} {a}, {y} {b}" for x, y in sizes[:_MOST_SIZES]]
    more = [f"and {len(sizes) - _MOST_SIZES} more"] if len(sizes) > _MOST_SIZES else []
    return "; ".join([*shown, *more])


def _compare_graphs(a: Texts, b: Texts) -> tuple[KeyChange, ...]:
    try:
        changes = find_graph_changes(Pairing(a, b))
    except ValueError:
        changes = ()
    return changes or _compare_lines(a, b)


def _compare_lines(a: Texts, b: Texts) -> tuple[KeyChange, ...]:
    """Returns the first line that differs, for texts whose difference the graphs do not show."""
    for name in GRAPH:
        x, y = a.get(name, "").split("\n"), b.get(name, "").split("\n")
        for number, (one, other) in enumerate(zip_longest(x, y, fillvalue=NONE), 1):
            if one != other:
                return (KeyChange(name, f"the {name}, line {number}", one, other),)
    return ()


def list_differing[Name](a: Mapping[Name, str], b: Mapping[Name, str]) -> list[Name]:
    """Returns the names whose texts differ, or that only one side has, in the order of A and then of B."""
    return [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]


def _compare_environments(a: Texts, b: Texts) -> Iterator[KeyChange]:
    """Yields a change for each ingredient, package, option or argument that differs, except those that follow."""
    if a.get(BACKEND) != b.get(BACKEND):
        # All other differences follow from the backend.
        yield _change(kind_of(BACKEND), None, a.get(BACKEND), b.get(BACKEND))
        return
    differing = list_differing(a, b)
    for kind in (kind_of(name) for name in differing if name not in GRAPH):
        if kind.follows not in differing:
            yield from _compare_ingredients(kind, a.get(kind.name), b.get(kind.name))


def _compare_ingredients(kind: IngredientKind, a: str | None, b: str | None) -> Iterator[KeyChange]:
    parts: list[KeyChange] = []
    if a is not None and b is not None:
        if kind.comparison is Comparison.VALUES:
            parts = _compare_values(kind, read_values(a), read_values(b))
        elif kind.comparison is Comparison.LAYOUTS:
            parts = _compare_layouts(kind, a, b)
    yield from parts or [_change(kind, None, a, b)]


def _compare_values(kind: IngredientKind, a: Texts, b: Texts) -> list[KeyChange]:
    differing = list_differing(a, b)
    return [_change(kind, kind.phrase.format(name), *_with_default(a.get(name), b.get(name))) for name in differing]


def _with_default(a: str | None, b: str | None) -> tuple[str | None, str | None]:
    """Returns two values of one setting. For a missing one the default is returned, which the other's text includes."""
    x, y = (read_changed(text or "") for text in (a, b))
    return (x[0] if x else y[1] if y and a is None else a), (y[0] if y else x[1] if x and b is None else b)


def _compare_layouts(kind: IngredientKind, a: str, b: str) -> list[KeyChange]:
    try:
        pairs = list(zip(read_layouts(a), read_layouts(b), strict=True))
    except ValueError:  # one cannot be read, or they have other numbers of inputs
        return []
    return [
        _change(kind, f"{kind.subject} of input %{index}", write_layouts((one,)), write_layouts((other,)))
        for index, (one, other) in enumerate(pairs)
        if one != other
    ]


def _change(kind: IngredientKind, subject: str | None, a: str | None, b: str | None) -> KeyChange:
    x, y = (NONE if text is None else text.replace("\n", "; ") for text in (a, b))
    return KeyChange(kind.name, subject or kind.subject, *shorten_values(x or "empty", y or "empty"))


_LOOKED_INTO = 24
"""How many keys of each rough ranking are compared in detail. The rankings use only equality and lengths of texts."""


def explain_miss(key: Texts, candidates: Sequence[Texts]) -> tuple[int | None, Difference]:
    """Returns the index of the candidate that differs least from a key, and the difference.

    The index is None if there are no candidates. The key is A in the difference. Keys are given as their ingredients.
    """
    nearest = find_nearest(key, candidates)
    return nearest, Difference(()) if nearest is None else compare(key, candidates[nearest])


def write_miss(nearest: str | None, difference: Difference) -> str:
    """Returns the reason of a miss in words. ``nearest`` is the readable name of the nearest key, if there is one."""
    if nearest is None:
        return "No template was known before."
    return f"The nearest is {nearest}. {difference.sentence('here', 'there')}"


def find_nearest(key: Texts, candidates: Sequence[Texts]) -> int | None:
    """Returns the position of the key that differs least, the last of equal ones; None if there are no candidates.

    The search is linear. It ranks all by the number of differing ingredients, and by the difference in length of the
    graph's, which is small if only sizes differ. It then compares the best of both rankings by their ops and lines in
    ingredients that differ.
    """
    rough = [(*_compare_roughly(key, other), -position) for position, other in enumerate(candidates)]
    by_length = heapq.nsmallest(_LOOKED_INTO, rough, key=lambda each: (each[1], each[0], each[2]))
    best = {*heapq.nsmallest(_LOOKED_INTO, rough), *by_length}
    return min(
        (-each[2] for each in best), key=lambda at: (*_compare_finely(key, candidates[at]), *rough[at]), default=None
    )


def _compare_roughly(key: Texts, other: Texts) -> tuple[int, int]:
    """Returns how many ingredients differ, and by how many characters the lengths of the graph's differ."""
    differ, longer = len(other.keys() - key.keys()), 0
    for name, text in key.items():
        its = other.get(name)
        if its != text:
            differ += 1
            if name in GRAPH:
                longer += abs(len(its or "") - len(text))
    return differ, longer


def _compare_finely(key: Texts, other: Texts) -> tuple[int, int]:
    """Returns how many ops and how many lines only one key has, counting ingredients that differ."""
    names = list_differing(key, other)
    sides = [{name: each.get(name, "") for name in names} for each in (key, other)]
    ops = [count_ops(side.get("ops", "")) for side in sides]
    lines = [
        Counter(hide_numbers(f"{name} {line}") for name, text in side.items() for line in text.split("\n"))
        for side in sides
    ]
    found = [sum(((a - b) + (b - a)).values()) for a, b in (ops, lines)]
    return found[0], found[1]


@dataclass(frozen=True, slots=True)
class Varying:
    """A size or a number that differs between related keys.

    Attributes:
        place: its position in an input, such as ``dimension 1 of %0``; empty if it is not a size of an input.
        values: its value in each key, in the order of the keys.
    """

    place: str
    values: tuple[Value, ...]

    @property
    def seen(self) -> tuple[Value, ...]:
        """The distinct values, in ascending order."""
        return tuple(sorted(dict.fromkeys(self.values), key=_as_number))

    @property
    def name(self) -> str:
        """The position in words."""
        return self.place or ("a number" if isinstance(self.values[0], Const) else "a size that no input has")

    def text(self) -> str:
        """Returns the name and the values as text."""
        return f"{self.name}: {', '.join(map(str, self.seen))}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the position and the values as JSON."""
        return {"place": self.place, "seen": [_as_number(value) for value in self.seen]}


@dataclass(frozen=True, slots=True)
class Relatives:
    """Keys of one backend and environment that differ only in sizes and numbers.

    Attributes:
        members: positions of the keys among those given, in order.
        varying: the sizes and numbers that differ.
    """

    members: tuple[int, ...]
    varying: tuple[Varying, ...]


def find_relatives(keys: Sequence[Texts]) -> tuple[Relatives, ...]:
    """Returns the groups of related keys, given the ingredients of each key.

    Keys that this version cannot read are left out.
    """
    alike: defaultdict[tuple[Skeleton, tuple[tuple[str, str], ...]], list[int]] = defaultdict(list)
    graphs: dict[int, Graph] = {}
    for position, key in enumerate(keys):
        try:
            graphs[position] = read_exactly(key)
        except ValueError:
            continue
        alike[skeleton_of(graphs[position]), _environment(key)].append(position)
    groups = (tuple(members) for members in alike.values() if len(members) > 1)
    return tuple(Relatives(members, _find_varying([graphs[one] for one in members])) for members in groups)


def _find_varying(graphs: Iterable[Graph]) -> tuple[Varying, ...]:
    general = make_family(tuple(graphs)).general
    columns = zip(*general.values, strict=True)
    return tuple(
        Varying("" if place is None else f"dimension {place[1]} of %{place[0]}", column)
        for place, column in zip(general.places, columns, strict=True)
    )


def _environment(key: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, text) for name, text in key.items() if name not in GRAPH))


def _as_number(value: Value) -> int | float:
    return float.fromhex(value.text) if isinstance(value, Const) else value


def list_lines(key: Texts) -> list[str]:
    """Returns the lines of a key for people: those of its graph, with numbered ops, and those of its environment."""
    names, lines = list(key), list[str]()
    with suppress(ValueError):  # a graph that cannot be read is shown as its text
        graph = read_graph(key)
        ops = [f"op {number}  {line}" for number, line in enumerate(op_lines(graph), 1)]
        lines, names = [*input_lines(graph), *ops, *output_lines(graph)], [name for name in key if name not in GRAPH]
    return lines + [f"{name}: {line}" for name in names for line in key[name].split("\n")]
