"""What came of programs when Thunder traced them by itself, written down as digests."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
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
