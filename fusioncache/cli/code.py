"""What compilers made of a template, as far as the store has it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.cache.stats import TemplateStats
from fusioncache.cli.highlight import highlighted
from fusioncache.cli.parts import Part
from fusioncache.cli.source import graph_of
from fusioncache.cli.storage import existing, store_errors
from fusioncache.ir import Graph
from fusioncache.words import bytes_text, one_line

if TYPE_CHECKING:
    from fusioncache.store import Entry
    from fusioncache.store.directory import Directory
    from fusioncache.store.disk import Disk

_LANGUAGES = {".py": "python", ".cpp": "cpp", ".cu": "cuda"}
_RECIPE = "recipe"
_REFUSED = "refused"
"""What stands in place of artifacts that a backend could not keep: see ``cache/kept.py``, which imports more."""
_HOW = {
    "nvfuser": "The store has nvFuser's machine code, not its CUDA. To see that: fusioncache show {name} --repro > "
    "repro.py && NVFUSER_DUMP=cuda_kernel python repro.py --executor nvfuser",
    "inductor": "The store has TorchInductor's wrapper and its compiled kernels, not their source. To see that: "
    "fusioncache show {name} --repro > repro.py && TORCH_LOGS=output_code python repro.py --executor inductor",
}


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
        how = " ".join(text.format(name=template.name) for text in _HOW.values())
        raise click.ClickException(f"the store has no code of {template.name}: it was not kept, or is gone. {how}")
    for backend in sorted({program["backend"] for program in programs} & _HOW.keys()):
        click.echo(_HOW[backend].format(name=template.name), err=True)
    return Part("\n\n".join(map(_text, programs)), programs)


def _programs(directory: Directory, graph: Graph, template: TemplateStats) -> list[dict[str, Any]]:
    from fusioncache.store.disk import Disk
    from fusioncache.store.store import MAX_AGE, MAX_BYTES

    disk = Disk(directory, MAX_BYTES, MAX_AGE)
    return [_program(disk, entry) for entry in _entries(disk, graph, template)]


def _entries(disk: Disk, graph: Graph, template: TemplateStats) -> Iterator[Entry]:
    """The entries for the template's parts. Whatever the layout, options and versions."""
    from fusioncache.store.errors import Refusal

    wanted = {tuple(sorted(parts.items())) for parts in _parts(graph, template)}
    names = {name for parts in wanted for name, _ in parts}
    for id_ in sorted(disk.entries.found()):
        try:
            entry = disk.entries.get(id_)
        except Refusal:
            continue  # 'fusioncache verify' lists it
        if entry and tuple(sorted((name, digest) for name, digest in entry.ingredients if name in names)) in wanted:
            yield entry


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


def _program(disk: Disk, entry: Entry) -> dict[str, Any]:
    """What the store has of a program: its artifacts, and those as text that are text."""
    contents = disk.contents(entry)
    sources = {name: content.decode(errors="replace") for name, content in contents.items() if _language(name)}
    return {
        "id": entry.id,
        "backend": entry.backend,
        "created": entry.created,
        "artifacts": {artifact.name: artifact.size for artifact in entry.artifacts},
        "sources": sources,
        "launches": _launches(contents),
        "refused": contents[_REFUSED].decode(errors="replace") if _REFUSED in contents else None,
    }


def _language(name: str) -> str | None:
    return _LANGUAGES.get(Path(name).suffix)


def _launches(contents: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """What nvFuser's stored kernels are and how they are launched."""
    if _RECIPE not in contents:
        return []
    wanted = ("function", "cubin", "grid", "block", "shared")
    steps = json.loads(contents[_RECIPE])["steps"]
    return [{name: step[name] for name in wanted} for step in steps if "function" in step]


def _text(program: Mapping[str, Any]) -> str:
    sizes = ", ".join(f"{one_line(name)} {bytes_text(size)}" for name, size in program["artifacts"].items())
    head = f"# {program['id']}\n# {sizes}"
    if program["refused"] is not None:
        return f"{head}\n# not kept: {one_line(program['refused'])}"
    launches = [
        f"{one['function']}  grid {one['grid']}  block {one['block']}  shared {one['shared']} B  {one['cubin']}"
        for one in program["launches"]
    ]
    sources = [highlighted(text, _language(name) or "text").rstrip("\n") for name, text in program["sources"].items()]
    return "\n".join([head, *launches, *sources])
