"""Two keys side by side, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile, zip_longest

from fusioncache.humanize import fold_text
from fusioncache.ir import Graph
from fusioncache.ir.ingredients import GRAPH
from fusioncache.observe.explain.difference import Texts
from fusioncache.observe.explain.pairing import Pairing, pair_graphs
from fusioncache.template.text import hide_numbers, input_lines, op_lines, output_lines

SAME, OTHER, ONLY_A, ONLY_B = " ", "|", "<", ">"
"""How the two sides of a row are to each other."""

_OP_NUMBER = re.compile(r"^op \d+")
_GAP = 3
_INDENT = 4
"""The indent of continued lines."""

_About = tuple[str, int]
"""What a line is about: a node by its number, or an output by its value's."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of A and the one of B that corresponds to it, either of them empty if there is none, and their mark."""

    a: str
    mark: str
    b: str


def align(a: Texts, b: Texts) -> tuple[Row, ...]:
    """Returns the lines of two keys, given their ingredients, in A's order, each op beside its partner."""
    try:
        pairing = pair_graphs(a, b)
    except ValueError:
        return tuple(_align_lines(a, b, dict.fromkeys([*a, *b])))
    environment = [name for name in dict.fromkeys([*a, *b]) if name not in GRAPH or name == "format"]
    return (*_align_graphs(pairing), *_align_lines(a, b, environment))


def write_rows(rows: Iterable[Row], width: int) -> Iterator[tuple[str, str]]:
    """Yields the lines of a text of this width, each with the mark of its row. Lines that are too long go on below."""
    column = max((width - _GAP) // 2, 1)
    for row in rows:
        sides = (fold_text(side, column, _INDENT) for side in (row.a, row.b))
        for index, (a, b) in enumerate(zip_longest(*sides, fillvalue="")):
            yield f"{a:{column}} {row.mark if index == 0 else ' '} {b}".rstrip(), row.mark


def _align_graphs(pairing: Pairing) -> Iterator[Row]:
    a, b = _lines(pairing.a.graph), _lines(pairing.b.graph)
    partner = {("node", x): ("node", y) for x, y in pairing.to_b.items()}
    values_b = set(pairing.b.graph.outputs)
    for value in pairing.a.graph.outputs:
        node = pairing.to_b.get(pairing.a.node_of[value])
        if node is not None and node + pairing.a.result_index(value) in values_b:
            partner["output", value] = "output", node + pairing.a.result_index(value)
    changed = {("node", met.user) for met in pairing.rewired}
    taken, order = set(partner.values()), list(b)
    position = {about: number for number, about in enumerate(order)}
    yield from _only_b(b, order, 0, taken)
    for key, line in a.items():
        other = partner.get(key)
        if other not in b:
            yield Row(line, ONLY_A, "")
            continue
        same = _without_numbers(line) == _without_numbers(b[other]) and key not in changed
        yield Row(line, SAME if same else OTHER, b[other])
        yield from _only_b(b, order, position[other] + 1, taken)


def _only_b(lines: Mapping[_About, str], order: list[_About], start: int, taken: set[_About]) -> Iterator[Row]:
    """Yields the lines from here on that nothing in A corresponds to, up to one that something does."""
    for index in takewhile(lambda index: order[index] not in taken, range(start, len(order))):
        yield Row("", ONLY_B, lines[order[index]])


def _lines(graph: Graph) -> dict[_About, str]:
    """Returns each line of a graph, its ops numbered, by what it is about."""
    lines = {("node", number): line for number, line in enumerate(input_lines(graph))}
    firsts = [first for _, first in graph.results()]
    numbered = [f"op {number}  {line}" for number, line in enumerate(op_lines(graph), 1)]
    lines.update({("node", first): line for first, line in zip(firsts, numbered, strict=True)})
    lines.update({("output", value): line for value, line in zip(graph.outputs, output_lines(graph), strict=True)})
    return lines


def _without_numbers(line: str) -> str:
    return hide_numbers(_OP_NUMBER.sub("", line))


def _align_lines(a: Texts, b: Texts, names: Iterable[str]) -> Iterator[Row]:
    for name in names:
        x, y = _label_lines(name, a.get(name)), _label_lines(name, b.get(name))
        for one, other in zip_longest(x, y, fillvalue=""):
            mark = SAME if one == other else ONLY_B if not one else ONLY_A if not other else OTHER
            yield Row(one, mark, other)


def _label_lines(name: str, text: str | None) -> list[str]:
    return [] if text is None else [f"{name}: {line}" for line in text.split("\n")]
