"""Two keys side by side, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile, zip_longest

from fusioncache.explain.pairing import Pairing
from fusioncache.explain.parts import GRAPH
from fusioncache.explain.reading import read_graph
from fusioncache.ir import Graph
from fusioncache.template.text import Inline, input_lines, op_lines, output_lines

SAME, OTHER, ONLY_A, ONLY_B = " ", "|", "<", ">"
"""How the two sides of a row are to each other."""

_NUMBERS = re.compile(r"%\d+|^op \d+")
_GAP = 3

_About = tuple[str, int]
"""What a line is about: a node by its number, or an output by its value's."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of A, or none, and the line of B that stands for the same.

    Attributes:
        a: A's line; empty if there is none.
        mark: ``SAME``, ``OTHER``, ``ONLY_A`` or ``ONLY_B``.
        b: B's line; empty if there is none.
    """

    a: str
    mark: str
    b: str


def rows(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[Row, ...]:
    """The lines of two keys, given their ingredients, in A's order: each op beside the one that takes its place."""
    try:
        pairing = Pairing(read_graph(a), read_graph(b))
    except ValueError:
        return tuple(_zipped(a, b, dict.fromkeys([*a, *b])))
    environment = [name for name in dict.fromkeys([*a, *b]) if name not in GRAPH or name == "format"]
    return (*_graph_rows(pairing), *_zipped(a, b, environment))


def side_by_side(rows: Iterable[Row], width: int) -> Iterator[tuple[str, str]]:
    """The lines of a text of this width, each with the mark of its row. Lines that are too long go on below."""
    column = max((width - _GAP) // 2, 1)
    for row in rows:
        for place, (a, b) in enumerate(zip_longest(_folded(row.a, column), _folded(row.b, column), fillvalue="")):
            yield f"{a:{column}} {row.mark if place == 0 else ' '} {b}".rstrip(), row.mark


def _folded(line: str, width: int) -> list[str]:
    return [line[start : start + width] for start in range(0, len(line), width)] or [""]


def _graph_rows(pairing: Pairing) -> Iterator[Row]:
    a, b = _lines(pairing.a.graph), _lines(pairing.b.graph)
    partner = {("node", x): ("node", y) for x, y in pairing.to_b.items()}
    values_b = set(pairing.b.graph.outputs)
    for value in pairing.a.graph.outputs:
        node = pairing.to_b.get(pairing.a.node_of[value])
        if node is not None and node + pairing.a.place(value) in values_b:
            partner["output", value] = "output", node + pairing.a.place(value)
    changed = {("node", met.user) for met in pairing.rewired}
    taken, order = set(partner.values()), list(b)
    place = {key: number for number, key in enumerate(order)}
    yield from _only_b(b, order, 0, taken)
    for key, line in a.items():
        other = partner.get(key)
        if other not in b:
            yield Row(line, ONLY_A, "")
            continue
        same = _plain(line) == _plain(b[other]) and key not in changed
        yield Row(line, SAME if same else OTHER, b[other])
        yield from _only_b(b, order, place[other] + 1, taken)


def _only_b(lines: Mapping[_About, str], order: list[_About], start: int, taken: set[_About]) -> Iterator[Row]:
    """The lines from here on that nothing in A stands for, up to one that something does."""
    places = takewhile(lambda place: order[place] not in taken, range(start, len(order)))
    for place in places:
        yield Row("", ONLY_B, lines[order[place]])


def _lines(graph: Graph) -> dict[_About, str]:
    """Each line of a graph, its ops numbered, by what it is about."""
    lines = {("node", number): line for number, line in enumerate(input_lines(graph))}
    firsts = [first for _, first in graph.results()]
    numbered = [f"op {number}  {line}" for number, line in enumerate(op_lines(graph, Inline()), 1)]
    lines.update({("node", first): line for first, line in zip(firsts, numbered, strict=True)})
    lines.update({("output", value): line for value, line in zip(graph.outputs, output_lines(graph), strict=True)})
    return lines


def _plain(line: str) -> str:
    """A line without numbers of values and ops, which depend on all other lines."""
    return _NUMBERS.sub("%", line)


def _zipped(a: Mapping[str, str], b: Mapping[str, str], names: Iterable[str]) -> Iterator[Row]:
    for name in names:
        x, y = _named(name, a.get(name)), _named(name, b.get(name))
        for one, other in zip_longest(x, y, fillvalue=""):
            mark = SAME if one == other else ONLY_B if not one else ONLY_A if not other else OTHER
            yield Row(one, mark, other)


def _named(name: str, text: str | None) -> list[str]:
    return [] if text is None else [f"{name}: {line}" for line in text.split("\n")]
