"""The command graph: a template as a picture."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.cli.json_output import encode_template, print_json
from fusioncache.cli.lookup import pick_template
from fusioncache.cli.options import TemplateId, json_option
from fusioncache.cli.source import read_graph
from fusioncache.record.reader import RecordReader

if TYPE_CHECKING:
    import networkx as nx


@click.command()
@click.argument("id_", metavar="ID", type=TemplateId())
@click.option("--svg", is_flag=True, help="SVG, laid out by graphviz where that is installed.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file; - is stdout."
)
@json_option
def graph(id_: str, svg: bool, output: Path | None, as_json: bool) -> None:
    """Draw one template: DOT for graphviz, or SVG.

    ID is the start of the template's digest or name, or the whole. A residual chain is one op there; its terms are not
    drawn. A file whose name ends in .svg gets SVG.

    \b
    Examples:
        fusioncache graph residual_tanh -o template.svg
        fusioncache graph 3f9a2c | dot -Tpng > template.png
    """
    from fusioncache.drawing.dot import dot_text, graphviz_svg
    from fusioncache.drawing.nodes import picture_of
    from fusioncache.drawing.svg import svg_text

    template = pick_template(RecordReader(), id_)
    picture = picture_of(read_graph(template))
    if as_json:
        if svg or output:
            raise click.UsageError("--json prints the graph as data: leave out --svg and --output.")
        print_json({**encode_template(template), **_data(picture)})
        return
    text = dot_text(picture, template.name)
    if svg or (output and output.suffix.lower() == ".svg"):
        text = graphviz_svg(text) or svg_text(picture, template.name)
    _write(text, output)


def _data(picture: nx.DiGraph) -> dict[str, Any]:
    nodes = [{"name": name, **dataclasses.asdict(node)} for name, node in picture.nodes(data="node")]
    return {"nodes": nodes, "edges": [list(edge) for edge in picture.edges]}


def _write(text: str, output: Path | None) -> None:
    if output is None or str(output) == "-":
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written ({error.strerror})") from error
    click.echo(f"wrote {output}", err=True)
