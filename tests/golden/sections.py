"""The parts of a golden text, each with a heading, and the compressed files that have them."""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_HEADING = "=== "
_SUFFIX = ".txt.xz"


@dataclass(frozen=True, slots=True)
class Section:
    """One part of what is printed.

    Attributes:
        title: says of what it is: mode, length and part. No other section of a model has it.
        text: what is compared, without a line break at its end.
    """

    title: str
    text: str


def write_sections(sections: Iterable[Section]) -> str:
    """Returns one text of all sections.

    Raises:
        ValueError: if a line of a section looks like a heading.
    """
    parts = []
    for section in sections:
        if any(line.startswith(_HEADING) for line in section.text.split("\n")):
            raise ValueError(f"a line of {section.title!r} begins with {_HEADING!r}")
        parts.append(f"{_HEADING}{section.title}\n{section.text}\n")
    return "".join(parts)


def read_sections(text: str) -> list[Section]:
    """Returns the sections of a text."""
    _, *parts = f"\n{text}".split(f"\n{_HEADING}")
    found = []
    for part in parts:
        title, _, content = part.partition("\n")
        found.append(Section(title, content.removesuffix("\n")))
    return found


def save(path: Path, sections: Sequence[Section]) -> None:
    """Writes a compressed file. Equal sections have equal bytes where the compressor is the same."""
    path.write_bytes(lzma.compress(write_sections(sections).encode(), preset=9 | lzma.PRESET_EXTREME))


def load(path: Path) -> list[Section]:
    """Returns the sections of a compressed file; none if there is no file."""
    return read_sections(lzma.decompress(path.read_bytes()).decode()) if path.exists() else []


def name_file(folder: Path, model: str) -> Path:
    """Returns where the sections of a model are."""
    return folder / f"{model}{_SUFFIX}"


def list_models(folder: Path) -> set[str]:
    """Returns the models of which there are files."""
    return {path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}")}
