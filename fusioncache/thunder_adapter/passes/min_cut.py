"""The minimum cut between two regions, by augmenting paths on two dicts, where networkx builds four layers of graphs.

Of several minimum cuts networkx returns the one that is next to the sink: the sink's side are the nodes that reach it
when the flow is at its maximum. They are the same for every maximum flow, so that it does not matter how one is found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from math import inf
from types import ModuleType
from typing import Any


def shorten_networkx(original: ModuleType) -> ModuleType:
    """Makes a module of the two names that Thunder uses of networkx; returns networkx if it may use other backends."""
    if any(original.config.backend_priority.values()):
        return original
    copy: Any = ModuleType(original.__name__, original.__doc__)
    copy.DiGraph, copy.minimum_cut = Graph, _cut_like(original)
    return copy


class Graph(dict[str, dict[str, float]]):
    """The capacities of a directed graph's edges, by their two nodes."""

    def add_edges_from(self, edges: Iterable[tuple[str, str, dict[str, float]]]) -> None:
        """Adds edges, of which a later one takes the place of an earlier one."""
        for source, target, attributes in edges:
            self.setdefault(source, {})[target] = attributes["capacity"]
            self.setdefault(target, {})


def _cut_like(networkx: Any) -> Callable[[Graph, str, str], Any]:
    def minimum_cut(graph: Graph, source: str, sink: str) -> tuple[float, tuple[set[str], set[str]]]:
        """Returns the cut's value and the nodes of either side, or raises what networkx raises."""
        found = cut(graph, source, sink)
        if found is not None:
            return found
        edges = ((one, other, {"capacity": value}) for one, others in graph.items() for other, value in others.items())
        own = networkx.DiGraph()
        own.add_edges_from(edges)
        return networkx.minimum_cut(own, source, sink)  # type: ignore[no-any-return]

    return minimum_cut


def cut(graph: Graph, source: str, sink: str) -> tuple[float, tuple[set[str], set[str]]] | None:
    """Returns a minimum cut's value and the nodes of either side, the sink's as small as possible.

    None if a path has no limit, or if there is no such node.
    """
    if source not in graph or sink not in graph or source == sink:
        return None
    left: dict[str, dict[str, float]] = defaultdict(dict)
    for one, others in graph.items():
        for other, capacity in others.items():
            if one != other and capacity > 0:
                left[one][other] = capacity
                left[other].setdefault(one, 0)
    value = 0.0
    while path := _find_path(left, source, sink):
        most = min(left[one][other] for one, other in path)
        if most == inf:
            return None
        value += most
        for one, other in path:
            left[one][other] -= most
            left[other][one] += most
    side = _find_reaching(left, sink)
    return value, (set(graph) - side, side)


def _find_path(left: dict[str, dict[str, float]], source: str, sink: str) -> list[tuple[str, str]]:
    """Returns the edges of a shortest path on which something is left; none if there is no path."""
    before: dict[str, str] = {source: source}
    nodes = [source]
    for node in nodes:
        for other, capacity in left[node].items():
            if capacity > 0 and other not in before:
                before[other] = node
                nodes.append(other)
        if sink in before:
            break
    path: list[tuple[str, str]] = []
    node = sink
    while node in before and node != source:
        path.append((before[node], node))
        node = before[node]
    return path


def _find_reaching(left: dict[str, dict[str, float]], sink: str) -> set[str]:
    """Returns the nodes from which there is a path to the sink on which something is left."""
    reaching = {sink}
    nodes = [sink]
    for node in nodes:
        for other in left[node]:
            if other not in reaching and left[other][node] > 0:
                reaching.add(other)
                nodes.append(other)
    return reaching
