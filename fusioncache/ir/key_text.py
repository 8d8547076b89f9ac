"""The text of a key and of its ingredients, but for the graph's: each function that writes stands by one that reads.

The graph's ingredients are written and read in ``template/text.py``. Nothing else takes these texts apart, so that a
format is known in one place. A changed byte in what is written changes digests: raise ``FORMAT`` there with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from fusioncache.ir.request import ArgumentLayouts

NOT_A_KEY = "no text of a key"
NUMBER = "number"
"""The layout of an argument that is no tensor."""

NamedValue = tuple[str, object]
"""One line of a list of values."""

_LAYOUT = re.compile(r"\(([\d, ]*)\) \(([\d, ]*)\)")
_DEFAULT = re.compile(r"(.*) \(default (.*?)\)", re.DOTALL)


def write_key(texts: Mapping[str, str]) -> str:
    """Returns the whole text of a key: each ingredient with its name and length.

    The length is why no text can pass for the beginning of the next ingredient.
    """
    return "".join(f"{name} {len(text)}\n{text}\n" for name, text in texts.items())


def read_key(text: str) -> dict[str, str]:
    """Returns the text of each ingredient by its name.

    Raises:
        ValueError: if it is no text of a key.
    """
    texts: dict[str, str] = {}
    position = 0
    while position < len(text):
        head, found, _ = text[position:].partition("\n")
        name, _, length = head.rpartition(" ")
        if not (found and name and length.isdecimal()):
            raise ValueError(NOT_A_KEY)
        start = position + len(head) + 1
        position = start + int(length) + 1
        if position > len(text) or text[position - 1] != "\n" or name in texts:
            raise ValueError(NOT_A_KEY)
        texts[name] = text[start : position - 1]
    return texts


def write_values(values: Iterable[NamedValue]) -> str:
    """Returns a list of values as text: a line for each, with its name, which has no space, before it."""
    return "\n".join(write_lines(values))


def write_lines(values: Iterable[NamedValue]) -> Iterator[str]:
    """Yields the lines of a list of values. What has several lines itself is put on one, and is not read as it was."""
    for name, value in values:
        line = str(value).replace("\n", "\\n")
        yield f"{name} {line}"


def read_values(text: str) -> dict[str, str]:
    """Returns the value of each line by its name. A line of one word is a name without a value."""
    lines = (line.partition(" ") for line in text.split("\n"))
    return {name: value for name, _, value in lines} if text else {}


def write_changed(value: str, default: str) -> str:
    """Returns a value that is not the default, as the text of a value in a list."""
    return f"{value} (default {default})"


def read_changed(text: str) -> tuple[str, str] | None:
    """Returns value and default; None if the text says nothing of a default."""
    found = _DEFAULT.fullmatch(text)
    return (found[1], found[2]) if found else None


def write_layouts(layouts: ArgumentLayouts) -> str:
    """Returns the layouts of arguments as text: a line for each, with shape and strides, or ``NUMBER``."""
    return "\n".join(NUMBER if layout is None else f"{tuple(layout[0])} {tuple(layout[1])}" for layout in layouts)


def read_layouts(text: str) -> ArgumentLayouts:
    """Returns the layouts of arguments.

    Raises:
        ValueError: if the text says something else.
    """
    return tuple(map(_read_layout, text.split("\n"))) if text else ()


def _read_layout(line: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if line == NUMBER:
        return None
    found = _LAYOUT.fullmatch(line)
    if found is None:
        raise ValueError(f"no layout: {line!r}")
    shape, strides = (tuple(int(size) for size in sizes.split(",") if size.strip()) for sizes in found.groups())
    return shape, strides
