"""What the derivation of a program read besides its key, as texts, and whether it is still so.

A read says what was found where: a global or a builtin of a module, an attribute of a module, a function whose code
ran, a class, a variable of the environment, or what torch says of its state. Texts are those of a ``Describer``, so
that two of them are equal if a trace could not tell what they stand for apart. A variable's text is a digest.

What is stored are the reads in the order in which they were described, which is that in which they are to be compared::

    reads = JSON object: format, reads: [ { kind, name, text } ]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fusioncache.accelerators.programs import lookup
from fusioncache.accelerators.programs.introspection import ABSENT
from fusioncache.accelerators.programs.lookup import Describing
from fusioncache.ir import strict_json
from fusioncache.ir.strict_json import decode, encode

FORMAT = 2

KINDS = ("variable", "query", "builtin", "global", "attribute", "function", "class")
"""Every kind of read, in the order in which they are recorded: what is likely to differ and quick to compare first."""


@dataclass(frozen=True, slots=True)
class Read:
    """Something that was looked at while a program was derived.

    Attributes:
        kind: one of ``KINDS``.
        name: of what was read: module and name with a dot between, for functions and classes with a colon, a variable's
            name, or a question as Python that asks it.
        text: what was found.
    """

    kind: str
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class ReadDifference:
    """A read that finds something else now.

    Attributes:
        read: what was found when the program was derived.
        now: what is found now; None if nothing is, or nothing that has a value.
    """

    read: Read
    now: str | None


def encode_reads(reads: Iterable[Read]) -> bytes:
    """Returns reads as bytes. Equal reads have equal bytes."""
    return encode(
        {"format": FORMAT, "reads": [{"kind": each.kind, "name": each.name, "text": each.text} for each in reads]}
    )


def decode_reads(content: bytes) -> tuple[Read, ...]:
    """Returns what ``encode_reads`` was given.

    Raises:
        ValueError: if these are no such bytes.
    """
    (listed,) = decode(content, "reads", format=FORMAT).fields("reads")
    return tuple(map(_decode_read, listed.items()))


def _decode_read(value: strict_json.Value) -> Read:
    kind, name, text = value.fields("kind", "name", "text")
    if kind.text() not in KINDS:
        raise ValueError(f"{kind.name} is {kind.text()!r}, which is no kind of read")
    return Read(kind.text(), name.text(), text.text())


def find_difference(reads: Iterable[Read], describer: Describing) -> ReadDifference | None:
    """Returns the first read that finds something else now; None if none does.

    Nothing is imported, and of what is found nothing is called. A module that has not been imported is a difference:
    what importing it would change is not known.

    Args:
        reads: what the program was derived from, in the order in which it was recorded.
        describer: has described what the program's key is made of, and nothing else.
    """
    for read in reads:
        now = find_text(read.kind, read.name, describer)
        if now != read.text:
            return ReadDifference(read, now)
    return None


def find_text(kind: str, name: str, describer: Describing) -> str | None:
    """Returns what a read finds now; None if there is nothing, or nothing that has a value."""
    try:
        if kind == "variable":
            return lookup.describe_variable(name)
        if kind == "query":
            return lookup.ask(name, describer)
        found = _find(kind, name)
        return describe_found(found, describer, _split(name, ".")[1] if kind in ("global", "attribute") else None)
    except Exception:  # what is found is anybody's, and whatever it does instead of answering is a difference
        return None


def _find(kind: str, name: str) -> Any:
    if kind in ("global", "builtin"):
        return lookup.find_global(*_split(name, "."))
    if kind == "attribute":
        return lookup.find_attribute(*_split(name, "."))
    return lookup.find_qualified(*_split(name, ":"))


def _split(name: str, mark: str) -> tuple[str, str]:
    module, _, rest = name.rpartition(mark)
    return module, rest


def describe_found(value: object, describer: Describing, name: str | None = None) -> str:
    """Returns the text of something that was read under a name.

    Raises:
        Exception: whatever the describer raises.
    """
    if value is ABSENT:
        return "nothing"
    if lookup.is_environment(value):
        return f"the environment, found by {describer.describe(lookup.list_environment_parts())}"
    return describer.describe(value, name)
