"""A template as source: what a compiler is given, and a script that runs it alone."""

from __future__ import annotations

import click

from fusioncache.backends.registry import BACKENDS, backend_class
from fusioncache.cli.highlight import highlighted
from fusioncache.cli.parts import Part
from fusioncache.ir import Graph
from fusioncache.record.stats import TemplateStats


def definition(template: TemplateStats) -> Part:
    """Writes what a compiler is given: the first one that is given a text, whichever compiled the template.

    Raises:
        click.ClickException: if that compiler is not installed, or has no words for the template.
    """
    graph = _inlined(template)
    try:
        text = next(filter(None, (backend_class(name).definition(graph) for name in BACKENDS)))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    return Part(highlighted(text, "python"), text)


def repro(template: TemplateStats) -> Part:
    """A script that runs the template alone."""
    from fusioncache.cli.repro import script

    text = script(template.name, _inlined(template), _most_terms(template))
    return Part(highlighted(text, "python"), text)


def graph_of(template: TemplateStats) -> Graph:
    """The graph of a recorded template.

    Raises:
        click.ClickException: if the record's text is not that of a template.
    """
    from fusioncache.template.text import read_exactly

    try:
        return read_exactly(dict(template.ingredients))
    except ValueError as error:
        raise click.ClickException(f"what is recorded of {template.name} cannot be read: {error}") from error


def _inlined(template: TemplateStats) -> Graph:
    from fusioncache.template.expand import inline

    return inline(graph_of(template), _most_terms(template))


def _most_terms(template: TemplateStats) -> tuple[int, ...]:
    return max(template.arities, key=sum, default=())
