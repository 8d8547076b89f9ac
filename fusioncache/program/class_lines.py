"""The ingredient ``classes`` of a key: a line for each class that was met, and one for each of its attributes.

These are most of the lines of a key, and from one key to the next they are the same as a rule. So they are written
anew only where one of the texts that they are made of is another one than it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fusioncache.ir.key_text import NamedValue, write_values

type ClassTexts = tuple[str, tuple[tuple[str, str], ...]]
"""The hash of a class, which says all of it, and its own attributes, each with the beginning of its text."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ClassLines:
    """The lines of the classes of one key. No class is kept alive by them.

    Attributes:
        classes: what they are made of, by the names of classes.
        text: the lines.
    """

    classes: Mapping[str, ClassTexts]
    text: str


@dataclass(slots=True, eq=False, repr=False)
class ClassWriter:
    """Writes the lines of classes for one key.

    Attributes:
        last: those of an earlier key; then those that were written.
    """

    last: ClassLines | None = None

    def write(self, classes: Mapping[str, ClassTexts]) -> str:
        """Returns the lines of these classes: those that were there before, if they are made of the same texts."""
        if self.last is None or self.last.classes != classes:
            self.last = ClassLines(classes, write_classes(classes))
        return self.last.text


def write_classes(classes: Mapping[str, ClassTexts]) -> str:
    """Returns the lines of classes."""
    return write_values(list_lines(classes))


def list_lines(classes: Mapping[str, ClassTexts]) -> Iterator[NamedValue]:
    """Yields each class with its hash, by its name, and behind each its own attributes.

    What the attributes are is for people, who ask what changed: a line ``class:name`` for each, in their order.
    """
    for name, (digest, attributes) in sorted(classes.items()):
        yield "_".join(name.split()), digest
        for attribute, text in attributes:
            yield "_".join(f"{name}:{attribute}".split()), text
