"""Golden texts: their sections, their normalization, and differences between two texts of a model.

``normalize`` removes differences between runs, checkouts and machines. Texts also omit all seconds of ``stats()`` and
the texts of ingredients that are not of a graph. Only the reasons of ``stats()``, the entries of the store and the
names of ingredients are sorted.
"""

from __future__ import annotations

import lzma
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import cache
from importlib.metadata import version
from pathlib import Path

DATA = Path(__file__).with_name("data") / version("lightning-thunder")
"""The texts of the installed Thunder: each supported version prints other traces."""
MOST_LINES = 40
"""Number of lines that are shown of the diff of one section."""
_HEADING = "=== "
_SUFFIX = ".txt.xz"
_TIMES = re.compile(r"took \d+ (?:milli|micro)?seconds")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{4,}\b")
_NAME = re.compile(r"(?<=_)[0-9a-f]{8}(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the output. Its title names mode, length and part, and is unique in the texts of a model."""

    title: str
    text: str


def write_sections(sections: Iterable[Section]) -> str:
    return "".join(f"{_HEADING}{section.title}\n{section.text}\n" for section in sections)


def read_sections(text: str) -> list[Section]:
    found = []
    for part in f"\n{text}".split(f"\n{_HEADING}")[1:]:
        title, _, content = part.partition("\n")
        found.append(Section(title, content.removesuffix("\n")))
    return found


def save(path: Path, sections: Sequence[Section]) -> None:
    path.write_bytes(lzma.compress(write_sections(sections).encode(), preset=9 | lzma.PRESET_EXTREME))


def load(path: Path) -> list[Section]:
    """Returns the sections of a compressed file; none if there is no file."""
    return read_sections(lzma.decompress(path.read_bytes()).decode()) if path.exists() else []


def name_file(folder: Path, model: str) -> Path:
    return folder / f"{model}{_SUFFIX}"


def list_models(folder: Path) -> set[str]:
    return {path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}")}


def normalize(text: str, digests: Mapping[str, str]) -> str:
    """Returns a text without durations, addresses and folders; ``digests`` replace the digests of templates' keys."""
    text = _TIMES.sub("took some time", text)
    text = _NAME.sub(lambda found: digests.get(found[0], found[0]), text)
    for folder in _list_folders():
        text = text.replace(folder, "")
    return _ADDRESS.sub("0x0", text)


@cache
def _list_folders() -> tuple[str, ...]:
    """Returns the folders that are removed from paths, inner folders first."""
    folders = [*filter(None, sys.path), tempfile.gettempdir()]
    names = {os.path.join(name, "") for folder in folders for name in (folder, os.path.realpath(folder))}
    return tuple(sorted(names, key=lambda name: (-len(name), name)))


def find_differences(model: str, golden: Sequence[Section], found: Sequence[Section]) -> list[str]:
    """Returns lines that show how the found sections differ from the committed ones; none if they do not."""
    expected, printed = ({each.title: each.text for each in sections} for sections in (golden, found))
    lines: list[str] = []
    for title in dict.fromkeys([*expected, *printed]):
        old, new = (texts[title].split("\n") if title in texts else [] for texts in (expected, printed))
        name = f"{model}, {title}"
        diff = list(unified_diff(old, new, f"{name}: golden", f"{name}: now", n=2, lineterm=""))
        lines += diff[:MOST_LINES]
        if len(diff) > MOST_LINES:
            lines.append(f"... and {len(diff) - MOST_LINES} more lines of this diff")
    return lines
