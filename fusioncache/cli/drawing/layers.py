"""The layout of a picture's boxes: in layers, each box below all that it needs.

A box's layer follows from the longest path to it. Edges that pass layers bend there. Within each layer the order is one
in which few edges cross, and each box is as near to the middle of its neighbours as the layer's other boxes allow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx

GAP = 18.0
"""The distance between two boxes of a layer."""
_SWEEPS = 8

Spot = str | tuple[str, str, int]
"""A node, or the point where the edge between two nodes passes the layer of that number."""

Neighbours = Mapping[Spot, Collection[Spot]]


@dataclass(frozen=True, slots=True)
class Layout:
    """The positions of all nodes and edges.

    Attributes:
        layers: the spots of each layer, left to right.
        x: the middle of each spot, from 0 at the left end of the leftmost.
        edges: for each edge, the spots that it passes, both ends included.
        width: of the picture.
    """

    layers: tuple[tuple[Spot, ...], ...]
    x: Mapping[Spot, float]
    edges: Mapping[tuple[str, str], tuple[Spot, ...]]
    width: float


def lay_out(picture: nx.DiGraph, width: Callable[[str], float]) -> Layout:
    """Finds positions for a graph without cycles, given the width of each node's box."""
    import networkx as nx

    rank = _ranks(picture)
    edges = {edge: _path(edge, rank) for edge in picture.edges}
    spots = nx.DiGraph()
    spots.add_nodes_from(rank)
    for path in edges.values():
        nx.add_path(spots, path)
    layers: list[list[Spot]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    for spot in spots:
        layers[rank[spot] if isinstance(spot, str) else spot[2]].append(spot)
    _order(layers, spots.pred, spots.succ)
    widths = {spot: width(spot) if isinstance(spot, str) else 0.0 for spot in spots}
    x = _find_x(layers, spots.pred, spots.succ, widths)
    left = min((x[spot] - widths[spot] / 2 for spot in x), default=0.0)
    right = max((x[spot] + widths[spot] / 2 for spot in x), default=0.0)
    return Layout(tuple(map(tuple, layers)), {spot: at - left for spot, at in x.items()}, edges, right - left)


def _ranks(picture: nx.DiGraph) -> dict[str, int]:
    """Returns the layer of each node. A node without predecessors is right above its first successor."""
    import networkx as nx

    generations = enumerate(nx.topological_generations(picture))
    rank: dict[str, int] = {name: number for number, names in generations for name in names}
    for name in picture:
        if picture.succ[name] and not picture.pred[name]:
            rank[name] = min(rank[after] for after in picture.succ[name]) - 1
    return rank


def _path(edge: tuple[str, str], rank: Mapping[str, int]) -> tuple[Spot, ...]:
    """Returns the spots of an edge, one in each layer."""
    start, end = edge
    return (start, *((start, end, number) for number in range(rank[start] + 1, rank[end])), end)


def _order(layers: list[list[Spot]], above: Neighbours, below: Neighbours) -> None:
    """Sorts each layer by where its neighbours are in the layer before, down and up again."""
    for sweep in range(_SWEEPS):
        step, side = (1, above) if sweep % 2 == 0 else (-1, below)
        ordered = layers[::step]
        for before, layer in pairwise(ordered):
            index = {spot: at for at, spot in enumerate(before)}
            # A spot without neighbours there keeps its position.
            wanted = {spot: fmean([index[n] for n in side[spot]] or [at]) for at, spot in enumerate(layer)}
            layer.sort(key=wanted.__getitem__)


def _find_x(
    layers: Sequence[Sequence[Spot]], above: Neighbours, below: Neighbours, widths: Mapping[Spot, float]
) -> dict[Spot, float]:
    x: dict[Spot, float] = {}
    for layer in layers:
        x |= _spread(layer, dict.fromkeys(layer, 0.0), widths)
    for sweep in range(2 * _SWEEPS):
        side, order = (above, layers) if sweep % 2 == 0 else (below, layers[::-1])
        for layer in order:
            wanted = {spot: fmean([x[n] for n in side[spot]] or [x[spot]]) for spot in layer}
            x |= _spread(layer, wanted, widths)
    return x


def _spread(layer: Sequence[Spot], wanted: Mapping[Spot, float], widths: Mapping[Spot, float]) -> dict[Spot, float]:
    """Returns positions near to where each spot of a layer wants to be, in this order, without overlaps.

    Each is halfway between the results of pushing to the right only and of pushing to the left only: both keep the
    distances, and so does the middle.
    """
    gaps = [(widths[a] + widths[b]) / 2 + GAP for a, b in pairwise(layer)]
    right, left = [wanted[spot] for spot in layer], [wanted[spot] for spot in layer]
    for at, gap in enumerate(gaps):
        right[at + 1] = max(right[at + 1], right[at] + gap)
    for at in range(len(gaps) - 1, -1, -1):
        left[at] = min(left[at], left[at + 1] - gaps[at])
    return {spot: (a + b) / 2 for spot, a, b in zip(layer, right, left, strict=True)}
