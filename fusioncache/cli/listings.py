"""Source: where a model's regions come from, where a name is defined, a template as a program, and generated code."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fusioncache.backends.api import BACKENDS, Description, backend_class, describe
from fusioncache.cli.console import highlight_source, say
from fusioncache.cli.stored import StoredEntry, is_expected, list_stored
from fusioncache.humanize import escape_controls, format_bytes, format_count
from fusioncache.ir import Graph
from fusioncache.observe.record.observations import Line, RegionRecord
from fusioncache.observe.record.stats import TemplateStats
from fusioncache.process.secrets import hide_line
from fusioncache.store.files import Refusal
from fusioncache.template.key import make_key
from fusioncache.template.plan import fold, inline
from fusioncache.template.text import read_exactly

_INSTALLED = ("site-packages", "dist-packages")
"""Names of the folders that packages are installed to."""
_MOST = 3
"""How many locations are shown of a template."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A location in the source of a model.

    Attributes:
        where: a module, and forward or backward.
        line: of the source, as far as that is known.
    """

    where: str
    line: Line | None

    def __str__(self) -> str:
        if self.line is None:
            return self.where
        text = hide_line(linecache.getline(self.line.file, self.line.number).strip())
        return f"{self.where}: {format_line(self.line)}{f'  {text}' if text else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the location as JSON has it."""
        line = self.line
        return {"place": self.where, "file": line and line.file, "line": line and line.number}


def find_locations(regions: Iterable[RegionRecord]) -> tuple[SourceLocation, ...]:
    """Returns the locations that regions come from, each once."""
    named = ((f"{region.source.module or 'the model'}, {region.trace}", find_line(region)) for region in regions)
    return tuple(dict.fromkeys(SourceLocation(where, line) for where, line in named))


def find_line(region: RegionRecord) -> Line | None:
    """Returns the line that a region comes from: the first of the user's, or else of a library's."""
    lines = region.source.lines
    return next((line for line in lines if not line.library), next(iter(lines), None))


def format_locations(locations: Sequence[SourceLocation]) -> list[str]:
    """Returns the first few locations, a line each, and how many more there are."""
    lines, more = [*map(str, locations[:_MOST])], len(locations) - _MOST
    return [*lines, f"and {format_count(more, 'more place', 'more places')}"] if more > 0 else lines


def format_line(line: Line) -> str:
    """Returns where a line is. The path of an installed package begins with the package's name."""
    return f"{_shorten_file(Path(line.file))}:{line.number}"


def _shorten_file(file: Path) -> Path:
    installed = next((folder for folder in file.parents if folder.name in _INSTALLED), None)
    return file.relative_to(installed) if installed else file


def find_definition(name: str) -> str | None:
    """Returns where a function, a class or a global is defined, with the line as it is there; None if it is not found.

    It is looked for in the files of modules: nothing is imported or run for it.

    Args:
        name: with its module's, such as ``torch.nn.functional.silu``.
    """
    parts = name.replace(":", ".").replace(" ", ".").split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for length in range(len(parts) - 1, 0, -1):
        for file in _find_files(parts[:length]):
            with suppress(OSError, ValueError):
                lines = file.read_text(encoding="utf-8").split("\n")
                if (number := _find_number(lines, parts[length:])) is not None:
                    return f"{_shorten_file(file)}:{number}: {hide_line(lines[number - 1].strip())}"
    return None


def _find_files(module: Sequence[str]) -> Iterator[Path]:
    """Yields the files that a module may be, as Python would find them from here."""
    for folder in dict.fromkeys([os.getcwd(), *sys.path]):
        start = Path(folder, *module)
        yield from (file for file in (start.with_suffix(".py"), start / "__init__.py") if file.is_file())


def _find_number(lines: Sequence[str], names: Sequence[str]) -> int | None:
    """Returns the number of the line that defines the last of these names, below those that define the ones before."""
    number = 0
    for depth, name in enumerate(names):
        indent = " +" if depth else ""
        defines = re.compile(rf"{indent}(?:(?:async )?def {name}\b|class {name}\b|(?:\w+ = )*{name}(?::| =))")
        found = (at for at, line in enumerate(lines[number:], number + 1) if defines.match(line))
        if (number := next(found, 0)) == 0:
            return None
    return number


def read_template_graph(template: TemplateStats) -> Graph:
    """Returns the graph of a recorded template.

    Raises:
        click.ClickException: if the record's text is not that of a template.
    """
    try:
        return read_exactly(template.texts)
    except ValueError as error:
        raise make_record_error(template, error) from error


def make_record_error(template: TemplateStats, error: ValueError) -> click.ClickException:
    """Returns an error that says that a recorded template cannot be read."""
    return click.ClickException(
        f"what is recorded of {template.name} cannot be read: {error}. Run the model again to record it anew"
    )


def write_definition(template: TemplateStats) -> str:
    """Returns what a compiler is given: the first one that is given a text, whichever compiled the template.

    Raises:
        click.ClickException: if that compiler is not installed, or has no words for the template.
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
    """Returns those of these that are for the template's parts, whatever the layout, options and versions.

    Raises:
        click.ClickException: if the record's text or counts are not those of a template.
    """
    graph = read_template_graph(template)
    try:
        wanted = {tuple(sorted(parts.items())) for parts in _list_parts(graph, template)}
    except ValueError as error:
        raise make_record_error(template, error) from error
    names = {name for parts in wanted for name, _ in parts}
    keys = (tuple(sorted(part for part in one.entry.ingredients if part[0] in names)) for one in stored)
    return [one for one, key in zip(stored, keys, strict=True) if key in wanted]


def find_reasons_not_kept(templates: Sequence[TemplateStats], directory: Path | None) -> Sequence[Mapping[str, int]]:
    """Finds for each template why executables of it cannot be stored, and how many, if a store says so.

    Raises:
        click.ClickException: if the store is named and is not there, or cannot be used.
    """
    stored = list_stored(directory, "executable")[1] if is_expected(directory) else ()
    notes = [one for one in stored if one.refused is not None]
    return [_count_reasons(template, notes) if notes else {} for template in templates]


def _count_reasons(template: TemplateStats, notes: Sequence[StoredEntry]) -> Mapping[str, int]:
    try:
        return Counter(str(one.refused) for one in select_executables(template, notes))
    except click.ClickException:
        return {}  # the commands that need the graph say so


def _list_parts(graph: Graph, template: TemplateStats) -> Iterator[dict[str, str]]:
    """Yields the digests of what a key says of a graph, for each graph that may have been compiled for the template."""
    for arities in template.arities:
        folded = fold(graph, arities)
        graphs = [inline(graph, arities), folded.core.graph]
        graphs += [step.graph for chain in folded.chains for step in chain.folds]
        for compiled in filter(None, graphs):
            yield {part.name: part.digest for part in make_key(compiled, {}).ingredients}


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
    """Returns the stored code of executables, as text and as data. Says how to get the source that is missing."""
    described = [(one, *_describe(one)) for one in stored]
    for backend, hint in _list_hints().items():
        lacking = [
            one
            for one, about, _ in described
            if one.entry.backend == backend and (one.refused is not None or about.lacks_source)
        ]
        if lacking:
            those_were = format_count(len(lacking), "executable was", "executables were")
            say(f"{those_were} stored without source. {hint.format(name=name)}")
    return "\n\n".join(_write_code(*each) for each in described), [_encode(*each) for each in described]


def _list_hints() -> dict[str, str]:
    """Returns how to see the source of kernels, by the backends that have any."""
    hints = {name: backend_class(name).source_hint for name in BACKENDS}
    return {name: hint for name, hint in hints.items() if hint}


def _describe(one: StoredEntry) -> tuple[Description, list[str]]:
    """Returns what its backend says of an executable's artifacts, and the names of those that cannot be read."""
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
