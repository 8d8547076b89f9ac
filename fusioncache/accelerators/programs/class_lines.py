"""The ingredient ``classes`` of a key: a line for each class that was met, and one for each of its attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from fusioncache.ir.key_text import NamedValue, write_values

type ClassTexts = tuple[str, tuple[tuple[str, str], ...]]
"""The hash of a class, which says all of it, and its own attributes, each with the beginning of its text."""


def write_classes(classes: Mapping[str, ClassTexts]) -> str:
    """Returns the lines of classes."""
    return "\n".join(_write_class(name, texts) for name, texts in sorted(classes.items()))


@lru_cache(2000)
def _write_class(name: str, texts: ClassTexts) -> str:
    return write_values(list_lines({name: texts}))


def list_lines(classes: Mapping[str, ClassTexts]) -> Iterator[NamedValue]:
    """Yields each class with its hash, by its name, and behind each its own attributes.

    What the attributes are is for people, who ask what changed: a line ``class:name`` for each, in their order.
    """
    for name, (digest, attributes) in sorted(classes.items()):
        yield "_".join(name.split()), digest
        for attribute, text in attributes:
            yield "_".join(f"{name}:{attribute}".split()), text
