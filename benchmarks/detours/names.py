"""The shortcuts in Thunder's tracing by group and name."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from fusioncache.thunder_adapter.installation import TRACING, Replacement, find_replacements

ALL, OWN = "all", "none"
"""What is installed where not one of the shortcuts is left out: all of them, or none."""


def name_place(replacement: Replacement) -> str:
    """Returns the name of what a shortcut replaces: of an attribute with its class, or of what is looked up."""
    holder, key = replacement.holder, replacement.key
    if isinstance(key, Enum):
        return key.name
    if not isinstance(key, str):
        return getattr(key, "__qualname__", repr(key))
    return f"{holder.__name__}.{key}" if isinstance(holder, type) else key


def is_around(group: str) -> bool:
    """True if a group stands around others, all of it or none: its parts rely on each other."""
    return any(each.around for each in find_replacements(group))


def list_shortcuts() -> Iterator[tuple[str, str, Replacement]]:
    """Returns each shortcut after its group and its name."""
    for group in TRACING:
        yield from ((group, name_place(each), each) for each in find_replacements(group))
