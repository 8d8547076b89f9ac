"""What came of programs when Thunder traced them by itself, written down as digests."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path

FILE = Path(__file__).with_name("own.json")

SOURCES = "sources"
"""The item that has the digest of the programs' sources: traces and errors tell on which lines something is."""

_ROOT = str(Path(__file__).resolve().parents[3])


def digest(facts: Mapping[str, str]) -> str:
    """Returns a digest of a program's facts, but for the bits of numbers, which other processors may round otherwise."""
    text = "".join(f"{name}\n{fact}\n" for name, fact in facts.items())
    return hashlib.sha256(re.sub("bits=[0-9a-f]*", "", text.replace(_ROOT, "")).encode()).hexdigest()[:16]


def digest_sources() -> str:
    """Returns a digest of the programs' sources."""
    return digest({path.name: path.read_text() for path in sorted(FILE.parent.glob("*.py"))})


def find_difference(own: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """Returns the first fact that is otherwise, in words, or None."""
    for name in dict.fromkeys([*own, *found]):
        pairs = zip_longest(own.get(name, "").split("\n"), found.get(name, "").split("\n"))
        for one, other in pairs:
            if one != other:
                return f"{name}: {other!r} in place of {one!r}"
    return None
