"""The executables of a store that were compiled for a template: their code, and why some could not be kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.backends.api import BACKENDS, backend_class, describe
from fusioncache.cli.kept_executables import KeptExecutable
from fusioncache.cli.source import read_graph
from fusioncache.cli.storage import is_expected, open_disk, open_store, read_entries, read_refusals, report_store_errors
from fusioncache.cli.template_parts import Part
from fusioncache.cli.terminal import highlight_source, remove_controls, say
from fusioncache.humanize import escape_controls, format_bytes, format_count
from fusioncache.ir import Graph
from fusioncache.observe.record.stats import TemplateStats

if TYPE_CHECKING:
    from fusioncache.backends.api import Description
    from fusioncache.store import Entry
    from fusioncache.store.disk import DiskStore


def select_entries(graph: Graph, template: TemplateStats, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Returns those of these entries that are for the template's parts, whatever the layout, options and versions.

    Raises:
        click.ClickException: if the record's counts are not those of such a template.
    """
    try:
        wanted = {tuple(sorted(parts.items())) for parts in _parts(graph, template)}
    except ValueError as error:
        raise click.ClickException(
            f"what is recorded of {template.name} cannot be read: {error}. Run the model again to record it anew"
        ) from error
    names = {name for parts in wanted for name, _ in parts}
    for entry in entries:
        if tuple(sorted((name, digest) for name, digest in entry.ingredients if name in names)) in wanted:
            yield entry


def find_reasons_not_kept(templates: Sequence[TemplateStats], directory: Path | None) -> Sequence[Mapping[str, int]]:
    """Finds for each template why executables of it cannot be kept, and how many, if a store says so.

    Raises:
        click.ClickException: if the store is named and is not there, or cannot be used.
    """
    if not is_expected(directory):
        return [{} for _ in templates]
    with report_store_errors():
        store = open_store(directory, make=False)
        stored = store.entries()
        notes = read_refusals(store, stored)
        entries = [entry for entry in stored if entry.id in notes]
    return [_reasons(template, entries, notes) for template in templates]


def _reasons(template: TemplateStats, entries: Sequence[Entry], notes: Mapping[str, str]) -> Mapping[str, int]:
    if not entries:
        return {}
    try:
        return Counter(notes[entry.id] for entry in select_entries(read_graph(template), template, entries))
    except click.ClickException:
        return {}  # the commands that need the graph say so


def _parts(graph: Graph, template: TemplateStats) -> Iterator[dict[str, str]]:
    """Yields the digests of what a key says of a graph, for each graph that may have been compiled for the template."""
    from fusioncache.template.expand import fold, inline
    from fusioncache.template.key import make_key

    for arities in template.arities:
        folded = fold(graph, arities)
        graphs = [inline(graph, arities), folded.core.graph]
        graphs += [step.graph for chain in folded.chains for step in chain.folds]
        for compiled in filter(None, graphs):
            yield {part.name: part.digest for part in make_key(compiled, {}).ingredients}


def describe_code(template: TemplateStats, directory: Path | None) -> Part:
    """Returns the stored code of each executable that was compiled for a template.

    Raises:
        click.ClickException: if the store has none.
    """
    from fusioncache.store import default_path

    graph, path = read_graph(template), directory or default_path()
    with report_store_errors():
        executables = _executables(open_disk(path), graph, template) if path.exists() else []
    if not executables:
        how = " ".join(hint.format(name=template.name) for hint in _hints().values())
        raise click.ClickException(f"the store has no code of {template.name}: it was not stored, or removed. {how}")
    return _describe(executables, template.name)


def describe_own_code(kept: KeptExecutable) -> Part:
    """Returns the stored code of one executable."""
    with report_store_errors():
        executable = _executable(kept.disk, kept.entry)
    return _describe([executable], kept.name)


def _describe(executables: Sequence[_Executable], name: str) -> Part:
    _say_what_lacks(executables, name)
    return Part("\n\n".join(map(_text, executables)), [executable.data for executable in executables])


@dataclass(frozen=True, slots=True)
class _Executable:
    """What the store has of an executable.

    Attributes:
        entry: of the store.
        description: of its artifacts, by its backend.
        damaged: the names of artifacts that cannot be read.
        refused: why it could not be kept, if it could not.
    """

    entry: Entry
    description: Description
    damaged: Sequence[str]
    refused: str | None

    @property
    def data(self) -> dict[str, Any]:
        """The fields of the command's JSON."""
        return {
            "id": self.entry.id,
            "name": self.entry.name,
            "backend": self.entry.backend,
            "created": self.entry.created,
            "artifacts": {artifact.name: artifact.size for artifact in self.entry.artifacts},
            "sources": {source.name: source.text for source in self.description.sources},
            "damaged": list(self.damaged),
            "launches": list(self.description.launches),
            "refused": self.refused,
        }

    @property
    def lacks_source(self) -> bool:
        """Whether there are kernels without their source. An executable of views alone has none."""
        return self.refused is not None or self.description.lacks_source


def _hints() -> dict[str, str]:
    """Returns how to see the source of kernels, by the backends that have any."""
    hints = {name: backend_class(name).source_hint for name in BACKENDS}
    return {name: hint for name, hint in hints.items() if hint}


def _say_what_lacks(executables: Sequence[_Executable], name: str) -> None:
    """Tells how to get the source of executables that were kept without."""
    for backend, hint in _hints().items():
        lacking = [one for one in executables if one.entry.backend == backend and one.lacks_source]
        if lacking:
            those_were = format_count(len(lacking), "executable was", "executables were")
            say(f"{those_were} stored without source. {hint.format(name=name)}")


def _executables(disk: DiskStore, graph: Graph, template: TemplateStats) -> list[_Executable]:
    return [
        _executable(disk, entry)
        for entry in select_entries(graph, template, read_entries(disk, disk.entries.list_files()))
    ]


def _executable(disk: DiskStore, entry: Entry) -> _Executable:
    from fusioncache.store.entry import REFUSED
    from fusioncache.store.files import Refusal

    contents: dict[str, bytes] = {}
    damaged = []
    for artifact in entry.artifacts:
        try:
            contents[artifact.name] = disk.content(artifact)
        except Refusal:
            damaged.append(artifact.name)
    refused = contents[REFUSED].decode(errors="replace") if REFUSED in contents else None
    return _Executable(entry, describe(entry.backend, contents), damaged, refused)


def _text(executable: _Executable) -> str:
    entry, description = executable.entry, executable.description
    sizes = ", ".join(f"{escape_controls(artifact.name)} {format_bytes(artifact.size)}" for artifact in entry.artifacts)
    lines = [f"# {entry.id}  {escape_controls(entry.name)}".rstrip(), f"# {sizes}"]
    if executable.refused is not None:
        lines.append(f"# not stored: {escape_controls(executable.refused)}")
    lines += [f"# {escape_controls(name)} is damaged: 'fusioncache verify' says more" for name in executable.damaged]
    lines += [
        f"# {one['function']}  grid {one['grid']}  block {one['block']}  shared {one['shared']} B  {one['cubin']}"
        for one in description.launches
    ]
    for source in description.sources:
        text = highlight_source(remove_controls(source.text), source.language)
        lines += [f"\n# {escape_controls(source.name)}", text.rstrip("\n")]
    return "\n".join(lines)
