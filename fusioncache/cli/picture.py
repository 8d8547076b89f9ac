"""The command graph: draws the graph of a template, or of an executable of the store, as SVG."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

import click

from fusioncache.cli.console import (
    ANY_ID,
    cut,
    directory_option,
    encode_fields,
    force_option,
    json_option,
    print_json,
    write_file,
)
from fusioncache.cli.show import read_template_graph
from fusioncache.cli.things import StoredEntry, pick
from fusioncache.ir import Arg, Const, Graph, Op, TensorType, ValueType, operands
from fusioncache.observe.record.stats import TemplateStats
from fusioncache.template.text import op_line, type_text

_LONGEST_LABEL = 40
_LETTER, _PADDING, _HEIGHT, _BETWEEN, _MARGIN = 6.7, 10.0, 36.0, 14.0, 12.0
_NEAREST, _FURTHER, _FURTHEST = 8.0, 6.0, 140.0
"""How far an edge extends to the right: a constant part, a part for each row that it spans, and the limit."""


@click.command()
@click.argument("id_", metavar="ID", type=ANY_ID)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file, which ends in .svg."
)
@force_option
@directory_option
@json_option
def graph(id_: str, output: Path | None, force: bool, directory: Path | None, as_json: bool) -> None:
    """Draw one template, or one executable of the store, as SVG.

    ID is an ID or a name from 'ls' or 'ls --store', or its start. A residual chain (a sum with any number of terms) is
    one operation in the picture, without its terms. Browsers show SVG. --json prints the nodes and edges.

    \b
    Examples:
        fusioncache graph residual_tanh -o template.svg
        fusioncache graph 3f9a2c > template.svg
    """
    if output and as_json:
        raise click.UsageError("--json prints the graph as data: leave out --output.")
    if output and output.suffix.lower() != ".svg":
        raise click.UsageError(
            f"a picture is SVG: give a name that ends in .svg in place of {output}, or leave out -o."
        )
    found = pick(id_, directory, ("template", "executable")).value
    assert isinstance(found, StoredEntry | TemplateStats)
    template = found.make_template() if isinstance(found, StoredEntry) else found
    picture = picture_of(read_template_graph(template))
    if as_json:
        nodes = [{"name": name, **encode_fields(node)} for name, node in picture.nodes.items()]
        print_json({**found.to_dict(), "nodes": nodes, "edges": list(picture.edges)})
    elif output:
        write_file(output, svg_text(picture, template.name).encode(), force=force)
    else:
        click.echo(svg_text(picture, template.name), nl=False)


@dataclass(frozen=True, slots=True)
class PictureNode:
    """One box of a picture.

    Attributes:
        kind: ``input``, ``size``, ``op`` or ``output``.
        label: its name with its number or literals.
        detail: its type; empty if it has none of its own.
        text: its line of the canonical text.
    """

    kind: str
    label: str
    detail: str
    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A graph with a node for each input, size, op and output.

    Attributes:
        nodes: the nodes by name, such as ``v3``, with the number of the node's first value, or ``out0``.
        edges: pairs of names, each once.
    """

    nodes: Mapping[str, PictureNode]
    edges: Collection[tuple[str, str]]


def picture_of(graph: Graph) -> Picture:
    """Returns the picture of a graph."""
    nodes, edges = dict(_leaves(graph)), list[tuple[str, str]]()
    owner = dict(enumerate(nodes))
    for op, first in graph.results():
        name = f"v{first}"
        nodes[name] = _op_node(op, first)
        edges += [(owner[index], name) for _, index in operands(op)]
        owner |= {first + index: name for index in range(len(op.outputs))}
    for index, value in enumerate(graph.outputs):
        nodes[f"out{index}"] = PictureNode("output", f"output {index}", "", f"output %{value}")
        edges.append((owner[value], f"out{index}"))
    return Picture(nodes, dict.fromkeys(edges).keys())


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


def svg_text(picture: Picture, title: str, *, styled: bool = True) -> str:
    """Returns the picture as SVG, to the letter the same for the same graph. Every text in it is escaped.

    A page with many pictures has one style sheet for all of them, so they are not ``styled`` themselves.
    """
    nodes = picture.nodes
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
    control = right + _bulge(start, end) * 4 / 3  # a curve reaches three quarters of the way to its control points
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
