"""The slots of what no backend compiled: words that stand where other entries have the name of a backend.

A program is what Thunder makes of a model for one kind of input. What it read beside its key may differ from process to
process, so several of them can have one key: each is in a slot of its own. The sizes that regions of one skeleton had
are in one more. What programs at several lengths have in common is a family, of which a form may have several, too. The
operations that Thunder supports in Dynamo's graphs have a slot as well, and so have the marks of templates that were
verified in a Thunder that was not tried.
"""

from __future__ import annotations

from fusioncache.ir.key_text import read_key

PROGRAM_FORMAT = 6
"""Of the keys of programs, their texts and their reads. Those of another format are not shown, copied or compared."""
PROGRAM_SLOTS = ("program", "program-1", "program-2", "program-3")
"""In the order in which they are looked into."""
SIZES_SLOT = "sizes"
SPLITS_SLOT = "splits"
VERIFIED_SLOT = "verified"
FAMILY_SLOTS = ("family", "family-1", "family-2", "family-3")
"""In the order in which they are looked into."""


def is_outdated(key: str) -> bool:
    """Returns whether the text of a key is that of a program, or of a family of programs, of another format."""
    try:
        return read_key(key).get("program format", str(PROGRAM_FORMAT)) != str(PROGRAM_FORMAT)
    except ValueError:  # of what is no key, the store says so
        return False


def is_program(backend: str) -> bool:
    """Returns whether an entry with this word is a program, rather than what a backend made of a graph."""
    return backend in PROGRAM_SLOTS


def is_family(backend: str) -> bool:
    """Returns whether an entry with this word is a family."""
    return backend in FAMILY_SLOTS


def is_compiled(backend: str) -> bool:
    """Returns whether an entry with this word is what a backend made of a graph."""
    return backend not in (*PROGRAM_SLOTS, *FAMILY_SLOTS, SIZES_SLOT, SPLITS_SLOT, VERIFIED_SLOT)
