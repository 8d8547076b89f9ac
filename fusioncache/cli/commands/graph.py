"""The command graph: a template as a picture."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fusioncache.cli.ids import Kind, pick
from fusioncache.cli.json_output import encode_template, print_json
from fusioncache.cli.kept_executables import KeptExecutable
from fusioncache.cli.lookup import add_ingredients
from fusioncache.cli.options import SubjectId, directory_option, json_option
from fusioncache.cli.source import read_graph
from fusioncache.cli.terminal import say
from fusioncache.observe.record.reader import RecordReader
from fusioncache.observe.record.stats import TemplateCounts, TemplateStats

if TYPE_CHECKING:
    import networkx as nx

type Format = Literal["dot", "svg", "png", "pdf"]

_KINDS: tuple[Kind, ...] = ("template", "executable")
_FORMATS: dict[str, Format] = {
    **{"": "dot", ".dot": "dot", ".gv": "dot"},
    **{".svg": "svg", ".png": "png", ".pdf": "pdf"},
}
"""What is written, by the end of a file's name."""


@click.command()
@click.argument("id_", metavar="ID", type=SubjectId())
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
    from fusioncache.cli.drawing.dot import dot_text
    from fusioncache.cli.drawing.nodes import picture_of

    wanted = _find_format(svg, output)
    found = pick(id_, directory, _KINDS).value
    template = _read_template(found)
    picture = picture_of(read_graph(template))
    if as_json:
        if svg or output:
            raise click.UsageError("--json prints the graph as data: leave out --svg and --output.")
        about = found.data() if isinstance(found, KeptExecutable) else encode_template(template)
        print_json({**about, **_data(picture)})
        return
    _write(_render(picture, dot_text(picture, template.name), template.name, wanted, output), output)


def _find_format(svg: bool, output: Path | None) -> Format:
    """Returns what to write.

    Raises:
        click.UsageError: if the file's name asks for something else.
    """
    end = output.suffix.lower() if output else ""
    if end not in _FORMATS:
        raise click.UsageError(f"{output} ends in {end}: give a name that ends in .png, .pdf, .svg or .dot.")
    if svg and end not in ("", ".svg"):
        raise click.UsageError(f"--svg writes SVG, and {output} ends in {end}: leave one of them out.")
    return "svg" if svg else _FORMATS[end]


def _read_template(found: object) -> TemplateStats:
    if isinstance(found, KeptExecutable):
        return found.make_template()
    assert isinstance(found, TemplateCounts)
    return add_ingredients(RecordReader(), found)


def _render(picture: nx.DiGraph, text: str, name: str, wanted: Format, output: Path | None) -> bytes:
    """Returns the picture in a format.

    Raises:
        click.ClickException: if graphviz has to make it and cannot.
    """
    from fusioncache.cli.drawing.dot import draw
    from fusioncache.cli.drawing.svg import svg_text

    if wanted == "dot":
        return text.encode()
    try:
        return draw(text, wanted)
    except RuntimeError as error:
        if wanted == "svg":
            return svg_text(picture, name).encode()
        advice = "or give a name that ends in .svg or .dot, which need no graphviz"
        raise click.ClickException(f"{output} was not written: {error}, {advice}") from error


def _data(picture: nx.DiGraph) -> dict[str, Any]:
    nodes = [{"name": name, **dataclasses.asdict(node)} for name, node in picture.nodes(data="node")]
    return {"nodes": nodes, "edges": [list(edge) for edge in picture.edges]}


def _write(content: bytes, output: Path | None) -> None:
    if output is None or str(output) == "-":
        click.echo(content, nl=False)
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        raise click.ClickException(
            f"{output} cannot be written ({error.strerror}): give another path with -o"
        ) from error
    say(f"wrote {output}")
