"""What came of programs when Thunder traced them by itself, written down as digests."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).with_name("own.json")

SOURCES = "sources"
"""The item that has the digest of the programs' sources."""

_ROOT = str(Path(__file__).resolve().parents[3])
_BITS = re.compile(r"bits=[0-9a-f]*")


def digest(facts: Mapping[str, str]) -> str:
    """Returns a digest of a program's facts, but for the bits of numbers, which other processors may round otherwise."""
    text = "".join(f"{name}\n{fact}\n" for name, fact in facts.items())
    return hashlib.sha256(_BITS.sub("", text.replace(_ROOT, "")).encode()).hexdigest()[:16]


def read_record() -> dict[str, str]:
    """Returns the digest of each program of which there is one."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def write_record(found: Mapping[str, Mapping[str, str]]) -> None:
    """Adds the digests of some programs to those that are written down."""
    _write(read_record() | {name: digest(facts) for name, facts in found.items()})


def write_sources() -> None:
    """Writes down that what is written down came of the programs as they are now."""
    _write(read_record() | {SOURCES: digest_sources()})


def digest_sources() -> str:
    """Returns a digest of the programs' sources: traces and errors tell on which lines something is."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(FILE.parent.glob("*.py")))).hexdigest()[:16]


def _write(record: Mapping[str, str]) -> None:
    FILE.write_text(json.dumps(dict(sorted(record.items())), indent=1) + "\n")


def find_difference(own: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """Returns the first fact that is otherwise, in words, or None."""
    for name in dict.fromkeys([*own, *found]):
        if own.get(name) != found.get(name):
            lines = [facts.get(name, "missing").split("\n") for facts in (own, found)]
            pairs = [pair for pair in zip(*lines, strict=False) if pair[0] != pair[1]]
            one, other = pairs[0] if pairs else (f"{len(lines[0])} lines", f"{len(lines[1])} lines")
            return f"{name}: {other!r} in place of {one!r}"
    return None
