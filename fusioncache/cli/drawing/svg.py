"""Pictures as SVG, laid out by ourselves, for light and for dark pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from fusioncache.cli.drawing.layers import Layout, Spot, lay_out
from fusioncache.cli.drawing.nodes import Node

if TYPE_CHECKING:
    import networkx as nx

_LETTER, _PADDING, _HEIGHT, _BETWEEN, _MARGIN = 6.7, 10.0, 36.0, 30.0, 12.0
_STYLE = """\
.fc-graph { font: 11px ui-monospace, monospace; }
.fc-graph rect { fill: #eef4fb; stroke: #5b7fa6; }
.fc-graph .input rect, .fc-graph .size rect { fill: #f3f0e6; stroke: #a08a45; }
.fc-graph .output rect { fill: #e9f5ec; stroke: #4d8f5f; }
.fc-graph text { fill: #1a1a1a; text-anchor: middle; }
.fc-graph .detail { fill: #5a5a5a; font-size: 10px; }
.fc-graph path { fill: none; stroke: #8a8f98; }
@media (prefers-color-scheme: dark) {
  .fc-graph rect { fill: #1c2733; stroke: #6f97c2; }
  .fc-graph .input rect, .fc-graph .size rect { fill: #2b2718; stroke: #b89f56; }
  .fc-graph .output rect { fill: #17281c; stroke: #63ad77; }
  .fc-graph text { fill: #e8e8e8; }
  .fc-graph .detail { fill: #a8a8a8; }
}"""


def svg_text(picture: nx.DiGraph, title: str, *, styled: bool = True) -> str:
    """Returns the picture as SVG. It is the same for the same graph, to the letter. Every text in it is escaped.

    A page with many pictures has one style sheet for all of them: they are not ``styled`` themselves.
    """
    layout = lay_out(picture, lambda name: _width(picture.nodes[name]["node"]))
    width = layout.width + 2 * _MARGIN
    height = len(layout.layers) * (_HEIGHT + _BETWEEN) - _BETWEEN + 2 * _MARGIN
    y = {spot: _MARGIN + number * (_HEIGHT + _BETWEEN) for number, layer in enumerate(layout.layers) for spot in layer}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fc-graph" role="img" aria-label="{escape(title)}" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.1f} {height:.1f}">',
        f"<title>{escape(title)}</title>",
        *([f"<style>\n{_STYLE}\n</style>"] if styled else []),
        *(f'<path d="{_curve(spots, layout, y)}"/>' for spots in layout.edges.values()),
        *(line for name, node in picture.nodes(data="node") for line in _box(node, layout.x[name] + _MARGIN, y[name])),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _width(node: Node) -> float:
    return max(len(node.label), len(node.detail)) * _LETTER + 2 * _PADDING


def _curve(spots: Sequence[Spot], layout: Layout, y: dict[Spot, float]) -> str:
    """Returns a path from the first box's lower side to the last one's upper side, upright where it passes a layer."""
    x, top = layout.x[spots[0]] + _MARGIN, y[spots[0]] + _HEIGHT
    parts = [f"M{x:.1f} {top:.1f}"]
    for spot in spots[1:]:
        next_x, next_top = layout.x[spot] + _MARGIN, y[spot]
        middle = (top + next_top) / 2
        parts.append(f"C{x:.1f} {middle:.1f} {next_x:.1f} {middle:.1f} {next_x:.1f} {next_top:.1f}")
        x, top = next_x, next_top
        if spot is not spots[-1]:
            top += _HEIGHT
            parts.append(f"V{top:.1f}")
    return "".join(parts)


def _box(node: Node, x: float, y: float) -> Iterator[str]:
    width, round_ = _width(node), 4 if node.kind == "op" else _HEIGHT / 2
    yield f'<g class="{node.kind}"><title>{escape(node.text)}</title>'
    yield f'<rect x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_HEIGHT:.0f}" rx="{round_:.0f}"/>'
    yield f'<text x="{x:.1f}" y="{y + (15 if node.detail else 22):.1f}">{escape(node.label)}</text>'
    if node.detail:
        yield f'<text class="detail" x="{x:.1f}" y="{y + 29:.1f}">{escape(node.detail)}</text>'
    yield "</g>"
