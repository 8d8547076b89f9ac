"""What compilers made of a template, as far as the store has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.backends.registry import BACKENDS, backend_class, describe
from fusioncache.cli.highlight import highlighted
from fusioncache.cli.parts import Part
from fusioncache.cli.programs import entries_of, stored
from fusioncache.cli.source import graph_of
from fusioncache.cli.storage import existing, store_errors
from fusioncache.humanize import escape_controls, format_bytes, format_count
from fusioncache.ir import Graph
from fusioncache.record.stats import TemplateStats

if TYPE_CHECKING:
    from fusioncache.backends.api import Description
    from fusioncache.store import Entry
    from fusioncache.store.directory import Directory
    from fusioncache.store.disk import DiskStore


def code(template: TemplateStats, directory: Path | None) -> Part:
    """The stored code of each program that was compiled for a template.

    Raises:
        click.ClickException: if the store has none.
    """
    from fusioncache.store import default_path

    graph, path = graph_of(template), directory or default_path()
    with store_errors():
        programs = _programs(existing(path), graph, template) if path.exists() else []
    if not programs:
        how = " ".join(hint.format(name=template.name) for hint in _hints().values())
        raise click.ClickException(f"the store has no code of {template.name}: it was not kept, or is gone. {how}")
    _say_what_lacks(programs, template.name)
    return Part("\n\n".join(map(_text, programs)), [program.data for program in programs])


@dataclass(frozen=True, slots=True)
class _Program:
    """What the store has of a program.

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
        """Whether there are kernels without their source. A program of views alone has none."""
        return self.refused is not None or self.description.lacks_source


def _hints() -> dict[str, str]:
    """How to see the source of kernels, by the backends that have any."""
    hints = {name: backend_class(name).source_hint for name in BACKENDS}
    return {name: hint for name, hint in hints.items() if hint}


def _say_what_lacks(programs: Sequence[_Program], name: str) -> None:
    """Tells how to get the source of programs that were kept without."""
    for backend, hint in _hints().items():
        lacking = [program for program in programs if program.entry.backend == backend and program.lacks_source]
        if lacking:
            programs_were = format_count(len(lacking), "program was", "programs were")
            click.echo(f"{programs_were} kept without source. {hint.format(name=name)}", err=True)


def _programs(directory: Directory, graph: Graph, template: TemplateStats) -> list[_Program]:
    from fusioncache.store.disk import DiskStore
    from fusioncache.store.store import MAX_AGE, MAX_BYTES

    disk = DiskStore(directory, MAX_BYTES, MAX_AGE)
    return [_program(disk, entry) for entry in entries_of(graph, template, stored(disk, disk.entries.list_files()))]


def _program(disk: DiskStore, entry: Entry) -> _Program:
    from fusioncache.store.entry import REFUSED
    from fusioncache.store.errors import Refusal

    contents: dict[str, bytes] = {}
    damaged = []
    for artifact in entry.artifacts:
        try:
            contents[artifact.name] = disk.content(artifact)
        except Refusal:
            damaged.append(artifact.name)
    refused = contents[REFUSED].decode(errors="replace") if REFUSED in contents else None
    return _Program(entry, describe(entry.backend, contents), damaged, refused)


def _text(program: _Program) -> str:
    entry, description = program.entry, program.description
    sizes = ", ".join(f"{escape_controls(artifact.name)} {format_bytes(artifact.size)}" for artifact in entry.artifacts)
    lines = [f"# {entry.id}  {escape_controls(entry.name)}".rstrip(), f"# {sizes}"]
    if program.refused is not None:
        lines.append(f"# not kept: {escape_controls(program.refused)}")
    lines += [f"# {escape_controls(name)} is damaged: 'fusioncache verify' says more" for name in program.damaged]
    lines += [
        f"# {one['function']}  grid {one['grid']}  block {one['block']}  shared {one['shared']} B  {one['cubin']}"
        for one in description.launches
    ]
    for source in description.sources:
        text = highlighted(_without_controls(source.text), source.language)
        lines += [f"\n# {escape_controls(source.name)}", text.rstrip("\n")]
    return "\n".join(lines)


def _without_controls(text: str) -> str:
    """The text without what would tell a terminal more than to print it."""
    return "".join(char if char in "\n\t" else escape_controls(char) for char in text)
