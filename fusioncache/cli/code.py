"""What compilers made of a template, as far as the store has it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.cli.highlight import highlighted
from fusioncache.cli.parts import Part
from fusioncache.cli.programs import entries_of, stored
from fusioncache.cli.source import graph_of
from fusioncache.cli.storage import existing, store_errors
from fusioncache.humanize import escape_controls, format_bytes, format_count
from fusioncache.ir import Graph
from fusioncache.record.stats import TemplateStats

if TYPE_CHECKING:
    from fusioncache.store import Entry
    from fusioncache.store.directory import Directory
    from fusioncache.store.disk import Disk

_LANGUAGES = {".py": "python", ".cpp": "cpp", ".cu": "cuda"}
_RECIPE = "recipe"
_KERNELS = {"inductor": "kernels.cpp", "nvfuser": "kernels.cu"}
"""What each backend keeps of its kernels for people. Nothing else reads it."""
_HOW = {
    "nvfuser": "To see nvFuser's CUDA: fusioncache show {name} --repro > repro.py && "
    "NVFUSER_DUMP=cuda_kernel python repro.py --executor nvfuser",
    "inductor": "To see TorchInductor's C++: fusioncache show {name} --repro > repro.py && "
    "TORCH_LOGS=output_code python repro.py --executor inductor",
}
_MACHINE_CODE = (".so", ".cubin")


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
    _say_what_lacks(programs, template.name)
    return Part("\n\n".join(map(_text, programs)), programs)


def _say_what_lacks(programs: Sequence[Mapping[str, Any]], name: str) -> None:
    """How to get the source of programs that were kept without."""
    for backend, source in _KERNELS.items():
        lacking = [program for program in programs if program["backend"] == backend and _lacks(program, source)]
        if lacking:
            programs_were = format_count(len(lacking), "program was", "programs were")
            click.echo(f"{programs_were} kept without source. {_HOW[backend].format(name=name)}", err=True)


def _lacks(program: Mapping[str, Any], source: str) -> bool:
    """Whether there are kernels without their source. A program of views alone has none."""
    compiled = program["refused"] is not None or any(name.endswith(_MACHINE_CODE) for name in program["artifacts"])
    return compiled and source not in program["sources"]


def _programs(directory: Directory, graph: Graph, template: TemplateStats) -> list[dict[str, Any]]:
    from fusioncache.store.disk import Disk
    from fusioncache.store.store import MAX_AGE, MAX_BYTES

    disk = Disk(directory, MAX_BYTES, MAX_AGE)
    return [_program(disk, entry) for entry in entries_of(graph, template, stored(disk, disk.entries.found()))]


def _program(disk: Disk, entry: Entry) -> dict[str, Any]:
    """What the store has of a program: its artifacts, and those as text that are text."""
    from fusioncache.store.entry import REFUSED

    texts, damaged = _texts(disk, entry)
    return {
        "id": entry.id,
        "name": entry.name,
        "backend": entry.backend,
        "created": entry.created,
        "artifacts": {artifact.name: artifact.size for artifact in entry.artifacts},
        "sources": {name: text for name, text in texts.items() if _language(name)},
        "damaged": damaged,
        "launches": _launches(texts),
        "refused": texts.get(REFUSED),
    }


def _texts(disk: Disk, entry: Entry) -> tuple[dict[str, str], list[str]]:
    """The artifacts of a program that are text, and the names of those that cannot be read."""
    from fusioncache.store.entry import REFUSED
    from fusioncache.store.errors import Refusal

    texts, damaged = {}, []
    for artifact in entry.artifacts:
        if _language(artifact.name) or artifact.name in (_RECIPE, REFUSED):
            try:
                texts[artifact.name] = disk.content(artifact).decode(errors="replace")
            except Refusal:
                damaged.append(artifact.name)
    return texts, damaged


def _language(name: str) -> str | None:
    return _LANGUAGES.get(Path(name).suffix)


def _launches(texts: Mapping[str, str]) -> list[dict[str, Any]]:
    """What nvFuser's stored kernels are and how they are launched."""
    if _RECIPE not in texts:
        return []
    wanted = ("function", "cubin", "grid", "block", "shared")
    steps = json.loads(texts[_RECIPE])["steps"]
    return [{name: step[name] for name in wanted} for step in steps if "function" in step]


def _text(program: Mapping[str, Any]) -> str:
    sizes = ", ".join(f"{escape_controls(name)} {format_bytes(size)}" for name, size in program["artifacts"].items())
    lines = [f"# {program['id']}  {escape_controls(program['name'])}".rstrip(), f"# {sizes}"]
    if program["refused"] is not None:
        lines.append(f"# not kept: {escape_controls(program['refused'])}")
    lines += [f"# {escape_controls(name)} is damaged: 'fusioncache verify' says more" for name in program["damaged"]]
    lines += [
        f"# {one['function']}  grid {one['grid']}  block {one['block']}  shared {one['shared']} B  {one['cubin']}"
        for one in program["launches"]
    ]
    for name, text in program["sources"].items():
        source = highlighted(_without_controls(text), _language(name) or "text")
        lines += [f"\n# {escape_controls(name)}", source.rstrip("\n")]
    return "\n".join(lines)


def _without_controls(text: str) -> str:
    """The text without what would tell a terminal more than to print it."""
    return "".join(char if char in "\n\t" else escape_controls(char) for char in text)
