"""Source locations of regions; a template as definition, script, generated code and picture; the command graph."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from fusioncache.backends.api import BACKENDS, Description, backend_class, describe
from fusioncache.cli.console import (
    ANY_ID,
    cut,
    directory_option,
    encode_fields,
    highlight_source,
    json_option,
    print_json,
    say,
    write_file,
)
from fusioncache.cli.things import StoredEntry, is_expected, list_stored, pick
from fusioncache.humanize import escape_controls, format_bytes, format_count
from fusioncache.ir import Arg, Const, Graph, Op, TensorType, ValueType, operands
from fusioncache.observe.record.observations import Line, RegionRecord
from fusioncache.observe.record.stats import TemplateStats
from fusioncache.process.secrets import hide_line
from fusioncache.store.files import Refusal
from fusioncache.template.key import make_key
from fusioncache.template.plan import inline, list_graphs
from fusioncache.template.text import op_line, read_exactly, type_text

_INSTALLED = ("site-packages", "dist-packages")
"""Names of the folders with installed packages."""
_MOST = 3
"""How many locations of a template are shown."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A location in the source of a model.

    Attributes:
        where: a module, and forward or backward.
        line: a line of the source; None if it is not known.
    """

    where: str
    line: Line | None

    def __str__(self) -> str:
        if self.line is None:
            return self.where
        text = hide_line(linecache.getline(self.line.file, self.line.number).strip())
        return f"{self.where}: {format_line(self.line)}{f'  {text}' if text else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the location as data for JSON."""
        line = self.line
        return {"place": self.where, "file": line and line.file, "line": line and line.number}


def find_locations(regions: Iterable[RegionRecord]) -> tuple[SourceLocation, ...]:
    """Returns the source locations of regions, each once."""
    named = ((f"{region.source.module or 'the model'}, {region.trace}", find_line(region)) for region in regions)
    return tuple(dict.fromkeys(SourceLocation(where, line) for where, line in named))


def find_line(region: RegionRecord) -> Line | None:
    """Returns the source line of a region: the first of the user's, or else of a library's, or None."""
    return next(iter(region.source.lines), None)


def format_locations(locations: Sequence[SourceLocation]) -> list[str]:
    """Returns the first few locations, a line each, and how many more there are."""
    lines, more = [*map(str, locations[:_MOST])], len(locations) - _MOST
    return [*lines, f"and {format_count(more, 'more place', 'more places')}"] if more > 0 else lines


def format_line(line: Line) -> str:
    """Returns the path and number of a line. A path in an installed package begins with the package's name."""
    return f"{_shorten_file(Path(line.file))}:{line.number}"


def _shorten_file(file: Path) -> Path:
    installed = next((folder for folder in file.parents if folder.name in _INSTALLED), None)
    return file.relative_to(installed) if installed else file


def read_template_graph(template: TemplateStats) -> Graph:
    """Returns the graph of a recorded template.

    Raises:
        click.ClickException: if the recorded text is not a template's.
    """
    try:
        return read_exactly(template.texts)
    except ValueError as error:
        raise make_record_error(template, error) from error


def make_record_error(template: TemplateStats, error: ValueError) -> click.ClickException:
    """Returns the error for a recorded template that cannot be read."""
    return click.ClickException(
        f"what is recorded of {template.name} cannot be read: {error}. Run the model again to record it anew"
    )


def write_definition(template: TemplateStats) -> str:
    """Returns the template's definition for the first backend that has definitions, even if another compiled it.

    Raises:
        click.ClickException: if that compiler is not installed, or cannot express the template.
    """
    graph = inline(read_template_graph(template), _most_terms(template))
    try:
        return next(filter(None, (backend_class(name).definition(graph) for name in BACKENDS)))
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def write_repro(template: TemplateStats) -> str:
    """Returns a script that runs the template alone."""
    from fusioncache.backends.script import write_script

    terms = _most_terms(template)
    return write_script(template.name, inline(read_template_graph(template), terms), terms)


def _most_terms(template: TemplateStats) -> tuple[int, ...]:
    return max(template.arities, key=sum, default=())


def select_executables(template: TemplateStats, stored: Sequence[StoredEntry]) -> list[StoredEntry]:
    """Returns the executables of the template's parts, for any layout, options and versions.

    Raises:
        click.ClickException: if the recorded text or counts are not a template's.
    """
    graph = read_template_graph(template)
    try:
        compiled = [make_key(each, {}) for arities in template.arities for each in list_graphs(graph, arities)]
    except ValueError as error:
        raise make_record_error(template, error) from error
    wanted = {tuple(sorted((part.name, part.digest) for part in key.ingredients)) for key in compiled}
    names = {name for parts in wanted for name, _ in parts}
    keys = (tuple(sorted(part for part in one.entry.ingredients if part[0] in names)) for one in stored)
    return [one for one, key in zip(stored, keys, strict=True) if key in wanted]


def find_reasons_not_stored(templates: Sequence[TemplateStats], directory: Path | None) -> Sequence[Mapping[str, int]]:
    """Returns for each template why executables of it cannot be stored, and how many, as noted in the store.

    Raises:
        StoreError, OSError: if a named store does not exist, or the store cannot be used.
    """
    stored = list_stored(directory, "executable")[1] if is_expected(directory) else ()
    notes = [one for one in stored if one.refused is not None]
    return [_count_reasons(template, notes) if notes else {} for template in templates]


def _count_reasons(template: TemplateStats, notes: Sequence[StoredEntry]) -> Mapping[str, int]:
    try:
        return Counter(str(one.refused) for one in select_executables(template, notes))
    except click.ClickException:
        return {}  # the commands that need the graph report the error


def describe_code(template: TemplateStats, directory: Path | None) -> tuple[str, Any]:
    """Returns the stored code of each executable that was compiled for a template, as text and as data.

    Raises:
        click.ClickException: if the store has none.
    """
    stored = list_stored(directory, "executable")[1] if is_expected(directory) else ()
    found = select_executables(template, stored)
    if not found:
        how = " ".join(hint.format(name=template.name) for hint in _list_hints().values())
        raise click.ClickException(f"the store has no code of {template.name}: it was not stored, or removed. {how}")
    return describe_executables(found, template.name)


def describe_executables(stored: Sequence[StoredEntry], name: str) -> tuple[str, Any]:
    """Returns the stored code of executables, as text and as data. Prints how to get missing source."""
    described = [(one, *_describe(one)) for one in stored]
    lacking = Counter(one.entry.backend for one, about, _ in described if one.refused is not None or about.lacks_source)
    for backend, hint in _list_hints().items():
        if number := lacking[backend]:
            those_were = format_count(number, "executable was", "executables were")
            say(f"{those_were} stored without source. {hint.format(name=name)}")
    return "\n\n".join(_write_code(*each) for each in described), [_encode(*each) for each in described]


def _list_hints() -> dict[str, str]:
    """Returns instructions to see the source of kernels, by backend, for the backends that have some."""
    hints = {name: backend_class(name).source_hint for name in BACKENDS}
    return {name: hint for name, hint in hints.items() if hint}


def _describe(one: StoredEntry) -> tuple[Description, list[str]]:
    """Returns the backend's description of an executable's artifacts, and the names of unreadable artifacts."""
    contents: dict[str, bytes] = {}
    damaged = []
    for artifact in one.entry.artifacts:
        try:
            contents[artifact.name] = one.disk.content(artifact)
        except (Refusal, OSError):
            damaged.append(artifact.name)
    return describe(one.entry.backend, contents), damaged


def _encode(one: StoredEntry, about: Description, damaged: Sequence[str]) -> dict[str, Any]:
    return {
        **{"id": one.entry.id, "name": one.entry.name, "backend": one.entry.backend, "created": one.entry.created},
        "artifacts": {artifact.name: artifact.size for artifact in one.entry.artifacts},
        "sources": {source.name: source.text for source in about.sources},
        **{"damaged": damaged, "launches": about.launches, "refused": one.refused},
    }


def _write_code(one: StoredEntry, about: Description, damaged: Sequence[str]) -> str:
    sizes = ", ".join(f"{artifact.name} {format_bytes(artifact.size)}" for artifact in one.entry.artifacts)
    lines = [f"{one.entry.id}  {one.entry.name}".rstrip(), sizes]
    lines += [f"not stored: {one.refused}"] if one.refused is not None else []
    lines += [f"{name} is damaged: 'fusioncache verify' says more" for name in damaged]
    lines += [
        f"{each['function']}  grid {each['grid']}  block {each['block']}  shared {each['shared']} B  {each['cubin']}"
        for each in about.launches
    ]
    blocks = ["\n".join(f"# {escape_controls(line)}" for line in lines)]
    for source in about.sources:
        text = highlight_source(source.text, source.language).rstrip("\n")
        blocks.append(f"# {escape_controls(source.name)}\n{text}")
    return "\n\n".join(blocks)


_LONGEST_LABEL = 40
_LETTER, _PADDING, _HEIGHT, _BETWEEN, _MARGIN = 6.7, 10.0, 36.0, 14.0, 12.0
_NEAREST, _FURTHER, _FURTHEST = 8.0, 6.0, 140.0
"""How far an edge extends to the right: a constant part, a part for each row that it spans, and the limit."""


@click.command()
@click.argument("id_", metavar="ID", type=ANY_ID)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file, which ends in .svg."
)
@directory_option
@json_option
def graph(id_: str, output: Path | None, directory: Path | None, as_json: bool) -> None:
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
    elif output is None:
        click.echo(svg_text(picture, template.name), nl=False)
    else:
        write_file(output, svg_text(picture, template.name).encode())


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
