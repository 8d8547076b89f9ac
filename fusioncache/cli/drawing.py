"""The command graph, and a template's graph as a picture: in graphviz's language, and as SVG.

The SVG has a row for each node, in the order of the canonical text. Edges to the next row are straight, all others go
around the rows between on the right side.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusioncache.cli.console import ANY_ID, cut, directory_option, encode_fields, json_option, print_json, write_file
from fusioncache.cli.ids import pick
from fusioncache.cli.listings import read_template_graph
from fusioncache.cli.stored import StoredEntry
from fusioncache.ir import Arg, Const, Graph, Op, TensorType, ValueType, operands
from fusioncache.observe.record.stats import TemplateStats
from fusioncache.template.text import op_line, type_text

if TYPE_CHECKING:
    import networkx as nx

_FORMATS = {"": "dot", ".dot": "dot", ".gv": "dot", ".svg": "svg", ".png": "png", ".pdf": "pdf"}
"""What is written, by the end of a file's name."""
_SHAPES = {"input": "ellipse", "size": "ellipse", "op": "box", "output": "ellipse"}
_SECONDS = 60.0
_ADVICE = "install graphviz ('apt install graphviz'), or see whether 'dot -v' names the format"
_LONGEST_LABEL = 40
_LETTER, _PADDING, _HEIGHT, _BETWEEN, _MARGIN = 6.7, 10.0, 36.0, 14.0, 12.0
_NEAREST, _FURTHER, _FURTHEST = 8.0, 6.0, 140.0
"""How far an edge goes to the right, and for each row that it passes, at most."""


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
    assert isinstance(found, StoredEntry | TemplateStats)
    template = found.make_template() if isinstance(found, StoredEntry) else found
    picture = picture_of(read_template_graph(template))
    if as_json:
        if svg or output:
            raise click.UsageError("--json prints the graph as data: leave out --svg and --output.")
        nodes = [{"name": name, **encode_fields(node)} for name, node in picture.nodes(data="node")]
        print_json({**found.to_dict(), "nodes": nodes, "edges": list(picture.edges)})
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


def svg_text(picture: nx.DiGraph, title: str, *, styled: bool = True) -> str:
    """Returns the picture as SVG. It is the same for the same graph, to the letter. Every text in it is escaped.

    A page with many pictures has one style sheet for all of them: they are not ``styled`` themselves.
    """
    nodes: dict[str, PictureNode] = dict(picture.nodes(data="node"))
    rows = {name: row for row, name in enumerate(nodes)}
    right = max((len(text) * _LETTER for node in nodes.values() for text in (node.label, node.detail)), default=0.0)
    right += 2 * _PADDING + _MARGIN
    curves = [_curve(rows[start], rows[end], right) for start, end in picture.edges]
    width = right + max((_bulge(rows[start], rows[end]) for start, end in picture.edges), default=0.0) + _MARGIN
    height = _top(len(nodes)) - _BETWEEN + _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fc-graph" role="img" aria-label="{escape(title)}" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.1f} {height:.1f}">',
        f"<title>{escape(title)}</title>",
        *([f"<style>\n{files('fusioncache.cli').joinpath('page', 'graph.css').read_text()}</style>"] if styled else []),
        *(f'<path d="{curve}"/>' for curve in curves),
        *(line for name, node in nodes.items() for line in _box(node, rows[name], right)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _top(row: int) -> float:
    return _MARGIN + row * (_HEIGHT + _BETWEEN)


def _bulge(start: int, end: int) -> float:
    """Returns how far to the right of the boxes the edge between two rows goes."""
    return 0.0 if end == start + 1 else min(_NEAREST + _FURTHER * (end - start), _FURTHEST)


def _curve(start: int, end: int, right: float) -> str:
    """Returns a path from one row to the next, or around the rows between two."""
    if end == start + 1:
        return f"M{(right + _MARGIN) / 2:.1f} {_top(start) + _HEIGHT:.1f}V{_top(end):.1f}"
    top, bottom = _top(start) + _HEIGHT / 2, _top(end) + _HEIGHT / 2
    control = right + _bulge(start, end) * 4 / 3  # a curve goes three quarters of the way there
    return f"M{right:.1f} {top:.1f}C{control:.1f} {top:.1f} {control:.1f} {bottom:.1f} {right:.1f} {bottom:.1f}"


def _box(node: PictureNode, row: int, right: float) -> Iterator[str]:
    x, y, round_ = (right + _MARGIN) / 2, _top(row), 4 if node.kind == "op" else _HEIGHT / 2
    yield f'<g class="{node.kind}"><title>{escape(node.text)}</title>'
    yield (
        f'<rect x="{_MARGIN:.1f}" y="{y:.1f}" width="{right - _MARGIN:.1f}" height="{_HEIGHT:.0f}" rx="{round_:.0f}"/>'
    )
    yield f'<text x="{x:.1f}" y="{y + (15 if node.detail else 22):.1f}">{escape(node.label)}</text>'
    if node.detail:
        yield f'<text class="detail" x="{x:.1f}" y="{y + 29:.1f}">{escape(node.detail)}</text>'
    yield "</g>"
