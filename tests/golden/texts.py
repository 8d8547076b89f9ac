"""Golden texts: their sections, what is left out of them, and where two of a model differ.

What differs between two runs, checkouts or machines is left out. This is all that is changed:

- ``took 12 milliseconds``, which some traces say of the pass that made them, becomes ``took some time``.
- In the name of a template, the first digits of its key's digest become those of a digest of its graph alone: the key
  has versions, settings and the processor, too. No other digest of a key is printed.
- Of a path, the folder that Python imports the file from is left out, and so is the temporary folder.
- An address in memory, such as ``0x7f12ab``, becomes ``0x0``.

Left out are also all seconds of ``stats()``, the texts of ingredients that are not of a graph, and the texts of all
ingredients of programs: their names are printed. Nothing else is changed, and nothing is sorted but the reasons of
``stats()``, the entries of the store, and names of ingredients. Where Thunder goes by the order of a set, the seed of
Python's hashes is fixed in the process that prints.
"""

from __future__ import annotations

import lzma
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import cache
from importlib.metadata import version
from pathlib import Path

DATA = Path(__file__).with_name("data") / version("lightning-thunder")
"""The texts of the installed Thunder: each supported version prints traces of its own."""
MOST_LINES = 40
"""So many lines are shown of the diff of one section."""
MOST_SECTIONS = 4
"""So many sections of a model are shown with their diffs. The others are named."""
_CONTEXT = 2
_HEADING = "=== "
_SUFFIX = ".txt.xz"
_TIMES = re.compile(r"took \d+ (?:milli|micro)?seconds")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{4,}\b")
_NAME = re.compile(r"(?<=_)[0-9a-f]{8}(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class Section:
    """One part of what is printed: its title says mode, length and part, and no other section of a model has it."""

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
    found = []
    for part in f"\n{text}".split(f"\n{_HEADING}")[1:]:
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


def normalize(text: str, digests: Mapping[str, str]) -> str:
    """Returns a text without what differs between two runs, checkouts or machines.

    ``digests`` has, for the first digits of the digest of each template's key, those to be printed.
    """
    text = _TIMES.sub("took some time", text)
    text = _NAME.sub(lambda found: digests.get(found[0], found[0]), text)
    for folder in _list_folders():
        text = text.replace(folder, "")
    return _ADDRESS.sub("0x0", text)


@cache
def _list_folders() -> tuple[str, ...]:
    """Returns the folders that are left out of paths, those within others first."""
    folders = [*filter(None, sys.path), tempfile.gettempdir()]
    names = {os.path.join(name, "") for folder in folders for name in (folder, os.path.realpath(folder))}
    return tuple(sorted(names, key=lambda name: (-len(name), name)))


def find_differences(model: str, golden: Sequence[Section], found: Sequence[Section]) -> list[str]:
    """Returns lines that say how what was found differs from what is committed; none if it does not."""
    expected, printed = ({each.title: each.text for each in sections} for sections in (golden, found))
    titles = list(dict.fromkeys([*expected, *printed]))
    differing = [title for title in titles if expected.get(title) != printed.get(title)]
    order = [title for title in printed if title in expected] != [title for title in expected if title in printed]
    if not differing:
        return [f"{model}: the same parts come in another order"] if order else []
    lines = [f"{model}: {len(differing)} of {len(titles)} parts differ"]
    for title in differing[:MOST_SECTIONS]:
        diff = list(_compare(f"{model}, {title}", expected.get(title), printed.get(title)))
        lines += ["", *diff[:MOST_LINES]]
        if len(diff) > MOST_LINES:
            lines.append(f"... and {len(diff) - MOST_LINES} more lines of this diff")
    if len(differing) > MOST_SECTIONS:
        lines += ["", f"{model}, {len(differing) - MOST_SECTIONS} more parts that differ:"]
        lines += [f"  {title}" for title in differing[MOST_SECTIONS:]]
    return lines


def _compare(name: str, golden: str | None, found: str | None) -> Iterator[str]:
    if golden is None or found is None:
        yield f"{name}: {'only in the new text' if golden is None else 'missing in the new text'}"
        yield from (f"{'+' if golden is None else '-'}{line}" for line in (golden or found or "").split("\n"))
        return
    old, new = golden.split("\n"), found.split("\n")
    yield from unified_diff(old, new, f"{name}: golden", f"{name}: now", n=_CONTEXT, lineterm="")
