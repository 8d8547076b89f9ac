"""Which programs of a store were compiled for a template, and why some could not be kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusioncache.cli.source import graph_of
from fusioncache.cli.storage import opened, refusals, store_errors
from fusioncache.ir import Graph
from fusioncache.record.stats import TemplateStats

if TYPE_CHECKING:
    from fusioncache.store import Entry
    from fusioncache.store.disk import DiskStore


def stored(disk: DiskStore, ids: Iterable[str]) -> Iterator[Entry]:
    """The entries with these ids, as far as they can be read: 'fusioncache verify' lists those that cannot."""
    from fusioncache.store.errors import Refusal

    for id_ in sorted(ids):
        with suppress(Refusal):
            entry = disk.entries.get(id_)
            if entry:
                yield entry


def entries_of(graph: Graph, template: TemplateStats, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Those of these entries that are for the template's parts, whatever the layout, options and versions.

    Raises:
        click.ClickException: if the record's counts are not those of such a template.
    """
    try:
        wanted = {tuple(sorted(parts.items())) for parts in _parts(graph, template)}
    except ValueError as error:
        raise click.ClickException(f"what is recorded of {template.name} cannot be read: {error}") from error
    names = {name for parts in wanted for name, _ in parts}
    for entry in entries:
        if tuple(sorted((name, digest) for name, digest in entry.ingredients if name in names)) in wanted:
            yield entry


def reasons_not_kept(templates: Sequence[TemplateStats], directory: Path | None) -> Sequence[Mapping[str, int]]:
    """For each template why programs of it cannot be kept, and how many, as far as there is a store that says so.

    Raises:
        click.ClickException: if the store is named and is not there, or cannot be used.
    """
    from fusioncache.store import default_path

    if directory is None and not default_path().exists():
        return [{} for _ in templates]
    with store_errors():
        store = opened(directory, make=False)
        notes = refusals(store)
        entries = list(stored(store.disk, notes)) if store.disk else []
        store.close()
    return [_reasons(template, entries, notes) for template in templates]


def _reasons(template: TemplateStats, entries: Sequence[Entry], notes: Mapping[str, str]) -> Mapping[str, int]:
    if not entries:
        return {}
    try:
        return Counter(notes[entry.id] for entry in entries_of(graph_of(template), template, entries))
    except click.ClickException:
        return {}  # the commands that need the graph say so


def _parts(graph: Graph, template: TemplateStats) -> Iterator[dict[str, str]]:
    """For each graph that may have been compiled for the template, the digests of what its key says of the graph."""
    from fusioncache.template.expand import fold, inline
    from fusioncache.template.key import make_key

    for arities in template.arities:
        folded = fold(graph, arities)
        graphs = [inline(graph, arities), folded.core.graph]
        graphs += [step.graph for chain in folded.chains for step in chain.folds]
        for compiled in filter(None, graphs):
            yield {part.name: part.digest for part in make_key(compiled, {}).ingredients}
