"""A template as source: what nvFuser is given, and the script that runs it alone."""

from __future__ import annotations

import click

from fusioncache.backends.api import BACKENDS, backend_class
from fusioncache.backends.script import write_script
from fusioncache.cli.template_parts import Part
from fusioncache.cli.terminal import highlight_source
from fusioncache.ir import Graph
from fusioncache.observe.record.stats import TemplateStats


def describe_definition(template: TemplateStats) -> Part:
    """Writes what a compiler is given: the first one that is given a text, whichever compiled the template.

    Raises:
        click.ClickException: if that compiler is not installed, or has no words for the template.
    """
    graph = _inline(template)
    try:
        text = next(filter(None, (backend_class(name).definition(graph) for name in BACKENDS)))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    return Part(highlight_source(text, "python"), text)


def describe_repro(template: TemplateStats) -> Part:
    """Returns a script that runs the template alone."""
    text = write_script(template.name, _inline(template), _most_terms(template))
    return Part(highlight_source(text, "python"), text)


def read_graph(template: TemplateStats) -> Graph:
    """Returns the graph of a recorded template.

    Raises:
        click.ClickException: if the record's text is not that of a template.
    """
    from fusioncache.template.text import read_exactly

    try:
        return read_exactly(dict(template.ingredients))
    except ValueError as error:
        raise click.ClickException(
            f"what is recorded of {template.name} cannot be read: {error}. Run the model again to record it anew"
        ) from error


def _inline(template: TemplateStats) -> Graph:
    from fusioncache.template.expand import inline

    return inline(read_graph(template), _most_terms(template))


def _most_terms(template: TemplateStats) -> tuple[int, ...]:
    return max(template.arities, key=sum, default=())
