"""An order of a graph's nodes that does not depend on how the graph was written down.

Partition refinement (one-dimensional Weisfeiler-Leman), O(m log n) for n nodes and m edges: Cardon and Crochemore,
"Partitioning a graph in O(|A| log2 |V|)", 1982; Paige and Tarjan, "Three partition refinement algorithms", 1987.
What refinement cannot tell apart is told apart by marks, and what these cannot by choice, one node at a time. Where
nodes that look alike to it are exchanged by a symmetry of the graph, which is all but always so, the result is the same
whatever the choice. Where they are not, two equal regions may get different texts: a missed sharing, never a wrong one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

Edge = tuple[int, int, str]
"""From a node to a node that it uses, with a label that says as which operand."""

Mark = tuple[float, ...]
"""What is to tell nodes apart only if nothing else does."""


def canonical_ranks(
    colours: Sequence[str], edges: Sequence[Edge], find_marks: Callable[[], Sequence[Mark]]
) -> list[int]:
    """Returns each node's position in an order of all nodes.

    Args:
        colours: what is known of each node beforehand, written so that it is the same for every writing of the graph.
        edges: the edges, labelled in the same way.
        find_marks: returns what tells nodes apart that are alike without; otherwise the order does not depend on it,
            and it is not asked for.
    """
    partition = _Partition(colours, edges)
    if len(set(colours)) == len(colours):
        return partition.cell
    partition.refine(range(len(colours)))
    if all(size <= 1 for size in partition.size):
        return partition.cell
    marks, start = find_marks(), 0
    while start < len(colours):
        partition.split_by_marks(start, marks)
        start += partition.size[start]
    start = 0
    while start < len(colours):
        if partition.size[start] == 1:
            start += 1
        else:
            partition.single_out(start)
    return partition.cell


class _Partition:
    """An ordered partition of the nodes into cells. A cell is known by the position where it starts."""

    def __init__(self, colours: Sequence[str], edges: Sequence[Edge]):
        count = len(colours)
        self.order = sorted(range(count), key=colours.__getitem__)
        self.position = [0] * count
        self.cell = [0] * count
        self.size = [0] * count
        start = 0
        for position, node in enumerate(self.order):
            if position and colours[node] != colours[self.order[position - 1]]:
                start = position
            self.position[node], self.cell[node] = position, start
            self.size[start] += 1
        self.neighbours: list[list[tuple[int, str]]] = [[] for _ in range(count)]
        for user, used, label in edges:
            self.neighbours[user].append((used, f"<{label}"))
            self.neighbours[used].append((user, f">{label}"))

    def members(self, start: int) -> list[int]:
        return self.order[start : start + self.size[start]]

    def split_by_marks(self, start: int, marks: Sequence[Mark]) -> None:
        """Divides a cell into one for each mark that its nodes have, in the order of these, then refines."""
        if self.size[start] == 1:
            return
        groups: dict[Mark, list[int]] = {}
        for node in self.members(start):
            groups.setdefault(marks[node], []).append(node)
        if len(groups) > 1:
            behind = [groups[mark] for mark in sorted(groups)[1:]]
            self.refine(self._divide(start, behind)[1:])

    def single_out(self, start: int) -> None:
        """Gives one node of a cell a cell of its own, then refines."""
        self.refine(self._divide(start, [[self.order[start]]])[-1:])

    def refine(self, splitters: Iterable[int]) -> None:
        """Splits cells until all nodes of a cell have the same edges to every cell."""
        pending = deque(start for start in splitters if self.size[start])
        waiting = set(pending)
        while pending:
            splitter = pending.popleft()
            waiting.discard(splitter)
            for start, fragments in self._split_by(splitter):
                was_waiting = start in waiting
                starts = self._divide(start, fragments)
                # Hopcroft's trick: edges into the largest part follow from those into the whole and the other parts.
                largest = None if was_waiting else max(starts, key=self.size.__getitem__)
                for new in starts:
                    if new != largest and new not in waiting:
                        waiting.add(new)
                        pending.append(new)

    def _split_by(self, splitter: int) -> list[tuple[int, list[list[int]]]]:
        """Returns the cells whose nodes differ in their edges to the splitter, with their touched nodes in groups."""
        labels: dict[int, list[str]] = {}
        for node in self.members(splitter):
            for neighbour, label in self.neighbours[node]:
                if self.size[self.cell[neighbour]] > 1:
                    labels.setdefault(neighbour, []).append(label)
        cells: dict[int, dict[tuple[str, ...], list[int]]] = {}
        for node, found in labels.items():
            cells.setdefault(self.cell[node], {}).setdefault(tuple(sorted(found)), []).append(node)
        return [
            (start, [groups[key] for key in sorted(groups)])
            for start, groups in sorted(cells.items())
            if len(groups) > 1 or sum(map(len, groups.values())) < self.size[start]
        ]

    def _divide(self, start: int, fragments: list[list[int]]) -> list[int]:
        """Makes each fragment of a cell a cell of its own, behind the nodes that are in none of them.

        Those keep their cell and are not touched: touching them would cost more than n log n.

        Returns:
            Where the cell and the new cells start.
        """
        position = start + self.size[start] - sum(map(len, fragments))
        starts = [start] if position > start else []
        self.size[start] = position - start
        for fragment in fragments:
            starts.append(position)
            self.size[position] = len(fragment)
            for node in fragment:
                self._swap(node, position)
                position += 1
        for new, fragment in zip(starts[-len(fragments) :], fragments, strict=True):
            for node in fragment:
                self.cell[node] = new
        return starts

    def _swap(self, node: int, position: int) -> None:
        other, old = self.order[position], self.position[node]
        self.order[position], self.order[old] = node, other
        self.position[node], self.position[other] = position, old
