"""The command graph, and a template's graph as a picture: in graphviz's language, and as SVG with a layout of its own.

A box's layer follows from the longest path to it. Edges that pass layers bend there. Within each layer the order is one
in which few edges cross, and each box is as near to the middle of its neighbours as the layer's other boxes allow.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import click

from fusioncache.cli.ids import add_ingredients, pick
from fusioncache.cli.listings import read_template_graph
from fusioncache.cli.output import cut, encode_fields, print_json, write_file
from fusioncache.cli.parameters import ANY_ID, directory_option, json_option
from fusioncache.cli.stored import StoredEntry
from fusioncache.ir import Arg, Const, Graph, Op, TensorType, ValueType, operands
from fusioncache.observe.record.reader import RecordReader
from fusioncache.observe.record.stats import TemplateCounts
from fusioncache.template.text import op_line, type_text

if TYPE_CHECKING:
    import networkx as nx

_FORMATS = {"": "dot", ".dot": "dot", ".gv": "dot", ".svg": "svg", ".png": "png", ".pdf": "pdf"}
"""What is written, by the end of a file's name."""
_SHAPES = {"input": "ellipse", "size": "ellipse", "op": "box", "output": "ellipse"}
_SECONDS = 60.0
_ADVICE = "install graphviz ('apt install graphviz'), or see whether 'dot -v' names the format"
_LONGEST_LABEL = 40
GAP = 18.0
"""The distance between two boxes of a layer."""
_SWEEPS = 16

Spot = str | tuple[str, str, int]
"""A node, or the point where the edge between two nodes passes the layer of that number."""

_LETTER, _PADDING, _HEIGHT, _BETWEEN, _MARGIN = 6.7, 10.0, 36.0, 30.0, 12.0


@click.command()
@click.argument("id_", metavar="ID", type=ANY_ID)
@click.option("--svg", is_flag=True, help="SVG, laid out by graphviz where that is installed.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file; - is stdout."
)
@directory_option
@json_option
def graph(id_: str, svg: bool, output: Path | None, directory: Path | None, as_json: bool) -> None:
    """Draw one template, or one executable of the store.

    ID is the start of an ID or of a name, or the whole, as 'ls' and 'ls --store' list them. A residual chain (a sum
    with any number of terms) is one operation in the picture; its terms are not drawn.

    The end of the file's name decides what is written: .png, .pdf, .svg, or .dot, which is graphviz's language.
    Graphviz's program dot makes .png and .pdf. An .svg is laid out without it where it is not installed.

    \b
    Examples:
        fusioncache graph residual_tanh -o template.png
        fusioncache graph 3f9a2c > template.dot
    """
    end = output.suffix.lower() if output else ""
    if end not in _FORMATS:
        raise click.UsageError(f"{output} ends in {end}: give a name that ends in .png, .pdf, .svg or .dot.")
    if svg and end not in ("", ".svg"):
        raise click.UsageError(f"--svg writes SVG, and {output} ends in {end}: leave one of them out.")
    found = pick(id_, directory, ("template", "executable")).value
    assert isinstance(found, StoredEntry | TemplateCounts)
    template = found.make_template() if isinstance(found, StoredEntry) else add_ingredients(RecordReader(), found)
    picture = picture_of(read_template_graph(template))
    if as_json:
        if svg or output:
            raise click.UsageError("--json prints the graph as data: leave out --svg and --output.")
        nodes = [{"name": name, **encode_fields(node)} for name, node in picture.nodes(data="node")]
        about = found.to_dict() if isinstance(found, StoredEntry) else encode_fields(found)
        print_json({**about, "nodes": nodes, "edges": list(picture.edges)})
        return
    content = _render(picture, template.name, "svg" if svg else _FORMATS[end], output)
    if output is None or str(output) == "-":
        click.echo(content, nl=False)
    else:
        write_file(output, content)


def _render(picture: nx.DiGraph, name: str, wanted: str, output: Path | None) -> bytes:
    """Returns the picture in a format.

    Raises:
        click.ClickException: if graphviz has to make it and cannot.
    """
    text = dot_text(picture, name)
    if wanted == "dot":
        return text.encode()
    try:
        return run_graphviz(text, wanted)
    except (OSError, subprocess.SubprocessError) as error:
        if wanted == "svg":
            return svg_text(picture, name).encode()
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().partition("\n")[0]
        raise click.ClickException(
            f"{output} was not written: graphviz's program dot failed ({said or error}): {_ADVICE}, or give a name "
            "that ends in .svg or .dot, which need no graphviz"
        ) from error


@dataclass(frozen=True, slots=True)
class PictureNode:
    """One box.

    Attributes:
        kind: ``input``, ``size``, ``op`` or ``output``.
        label: what it is.
        detail: its type; empty if it has none of its own.
        text: its line of the canonical text.
    """

    kind: str
    label: str
    detail: str
    text: str


def picture_of(graph: Graph) -> nx.DiGraph:
    """Returns the graph with a node for each input, size, op and output.

    Nodes have names such as ``v3``, by the number of their first value, and ``out0``. The attribute ``node`` of each is
    a ``PictureNode``.
    """
    import networkx as nx

    picture = nx.DiGraph()
    owner: dict[int, str] = {}
    for name, node in _leaves(graph):
        owner[len(owner)] = name
        picture.add_node(name, node=node)
    for op, first in graph.results():
        name = f"v{first}"
        picture.add_node(name, node=_op_node(op, first))
        picture.add_edges_from((owner[index], name) for _, index in operands(op))
        owner |= {first + index: name for index in range(len(op.outputs))}
    for index, value in enumerate(graph.outputs):
        picture.add_node(f"out{index}", node=PictureNode("output", f"output {index}", "", f"output %{value}"))
        picture.add_edge(owner[value], f"out{index}")
    return picture


def _leaves(graph: Graph) -> Iterator[tuple[str, PictureNode]]:
    for number, type_ in enumerate(graph.inputs):
        yield f"v{number}", PictureNode("input", f"input %{number}", _shorten_type(type_), f"input %{number}: {type_}")
    for number in range(len(graph.inputs), graph.first_result):
        yield f"v{number}", PictureNode("size", f"size %{number}", "", f"size %{number}")


def _op_node(op: Op, first: int) -> PictureNode:
    literals = [_literals(arg) for arg in op.args] + [
        f"{name}={_literals(arg)}" for name, arg in op.kwargs if _literals(arg)
    ]
    label = " ".join(filter(None, [op.name.rpartition(".")[2], *literals]))
    detail = ", ".join(_shorten_type(type_) for type_ in op.outputs if type_)
    return PictureNode("op", cut(label, _LONGEST_LABEL), cut(detail, _LONGEST_LABEL), op_line(op, first))


def _literals(arg: Arg) -> str:
    """Returns the literals in an argument; empty if there are none."""
    if isinstance(arg, Const):
        return "" if arg.kind == "none" else str(arg).removeprefix(f"{arg.kind}:")
    if isinstance(arg, tuple) and arg and all(isinstance(item, Const) for item in arg):
        return f"({', '.join(map(_literals, arg))})"
    return ""


def _shorten_type(type_: ValueType) -> str:
    return type_text(type_).rpartition(" ")[0] if isinstance(type_, TensorType) else str(type_)


def dot_text(picture: nx.DiGraph, title: str) -> str:
    """Returns the picture as DOT. It is the same for the same graph, to the letter."""
    lines = [f"digraph {_quote(title)} {{", '  node [fontname="monospace", fontsize=10];']
    for name, node in picture.nodes(data="node"):
        label = "\n".join(filter(None, [node.label, node.detail]))
        lines.append(f"  {name} [shape={_SHAPES[node.kind]}, label={_quote(label)}, tooltip={_quote(node.text)}];")
    lines += [f"  {start} -> {end};" for start, end in picture.edges]
    return "\n".join([*lines, "}"]) + "\n"


def run_graphviz(dot: str, format_: str) -> bytes:
    """Returns the picture that graphviz's program ``dot`` makes.

    Args:
        dot: the picture in graphviz's language.
        format_: such as ``svg``, ``png`` or ``pdf``.

    Raises:
        OSError, subprocess.SubprocessError: if the program is not installed, or fails.
    """
    command = ["dot", f"-T{format_}"]
    return subprocess.run(command, input=dot.encode(), capture_output=True, timeout=_SECONDS, check=True).stdout


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class PictureLayout:
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


def lay_out(picture: nx.DiGraph, width: Callable[[str], float]) -> PictureLayout:
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
    widths = {spot: width(spot) if isinstance(spot, str) else 0.0 for spot in spots}
    x = _place(layers, spots, widths)
    left = min((x[spot] - widths[spot] / 2 for spot in x), default=0.0)
    right = max((x[spot] + widths[spot] / 2 for spot in x), default=0.0)
    return PictureLayout(tuple(map(tuple, layers)), {spot: at - left for spot, at in x.items()}, edges, right - left)


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


def _place(layers: Sequence[list[Spot]], spots: nx.DiGraph, widths: Mapping[Spot, float]) -> dict[Spot, float]:
    """Sorts each layer by where its neighbours are, down and up again, and returns where each spot is then."""
    x = {spot: float(at) for layer in layers for at, spot in enumerate(layer)}
    for sweep in range(_SWEEPS):
        side, order = (spots.pred, layers) if sweep % 2 == 0 else (spots.succ, layers[::-1])
        for layer in order:
            wanted = {spot: fmean([x[near] for near in side[spot]] or [x[spot]]) for spot in layer}
            layer.sort(key=wanted.__getitem__)
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


def svg_text(picture: nx.DiGraph, title: str, *, styled: bool = True) -> str:
    """Returns the picture as SVG. It is the same for the same graph, to the letter. Every text in it is escaped.

    A page with many pictures has one style sheet for all of them: they are not ``styled`` themselves.
    """
    layout = lay_out(picture, lambda name: _box_width(picture.nodes[name]["node"]))
    width = layout.width + 2 * _MARGIN
    height = len(layout.layers) * (_HEIGHT + _BETWEEN) - _BETWEEN + 2 * _MARGIN
    y = {spot: _MARGIN + number * (_HEIGHT + _BETWEEN) for number, layer in enumerate(layout.layers) for spot in layer}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fc-graph" role="img" aria-label="{escape(title)}" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.1f} {height:.1f}">',
        f"<title>{escape(title)}</title>",
        *([f"<style>\n{files('fusioncache.cli').joinpath('page', 'graph.css').read_text()}</style>"] if styled else []),
        *(f'<path d="{_curve(spots, layout, y)}"/>' for spots in layout.edges.values()),
        *(line for name, node in picture.nodes(data="node") for line in _box(node, layout.x[name] + _MARGIN, y[name])),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _box_width(node: PictureNode) -> float:
    return max(len(node.label), len(node.detail)) * _LETTER + 2 * _PADDING


def _curve(spots: Sequence[Spot], layout: PictureLayout, y: dict[Spot, float]) -> str:
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


def _box(node: PictureNode, x: float, y: float) -> Iterator[str]:
    width, round_ = _box_width(node), 4 if node.kind == "op" else _HEIGHT / 2
    yield f'<g class="{node.kind}"><title>{escape(node.text)}</title>'
    yield f'<rect x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_HEIGHT:.0f}" rx="{round_:.0f}"/>'
    yield f'<text x="{x:.1f}" y="{y + (15 if node.detail else 22):.1f}">{escape(node.label)}</text>'
    if node.detail:
        yield f'<text class="detail" x="{x:.1f}" y="{y + 29:.1f}">{escape(node.detail)}</text>'
    yield "</g>"
