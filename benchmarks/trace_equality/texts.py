"""The text of every trace that Thunder makes for one call, and where two such texts part."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import thunder

_LISTS = {
    "prologue": "last_prologue_traces",
    "forward": "last_traces",
    "backward": "last_backward_traces",
    "epilogue": "last_epilogue_traces",
}
_TIMES = re.compile(r"took \d+ (?:milli|micro)?seconds")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first line in which two texts differ.

    Attributes:
        trace: which, in words.
        line: its number, from 1; 0 if only one of the two has this trace.
        own: what Thunder's own tracing says there.
        found: what it says with shortcuts.
    """

    trace: str
    line: int
    own: str
    found: str

    def __str__(self) -> str:
        return f"{self.trace}, line {self.line}: {self.found!r} in place of {self.own!r}"


def read_texts(compiled: Any) -> dict[str, str]:
    """Returns the text of every trace of a compiled function's last call, from the first to the final ones, by name.

    How long a pass took, which some say, is left out.
    """
    stats = thunder.compile_stats(compiled)
    return {
        f"{name} {number}": _TIMES.sub("took some time", str(trace))
        for name, attribute in _LISTS.items()
        for number, trace in enumerate(getattr(stats, attribute, None) or (), 1)
    }


def find_difference(own: Mapping[str, str], found: Mapping[str, str]) -> Difference | None:
    """Returns the first difference between the traces of two calls, in the order in which they were made, or None."""
    for name in dict.fromkeys([*own, *found]):
        if name not in own or name not in found:
            return Difference(name, 0, *("there" if name in texts else "missing" for texts in (own, found)))
        if own[name] != found[name]:
            pairs = zip_longest(own[name].split("\n"), found[name].split("\n"), fillvalue="")
            return next(Difference(name, line, *pair) for line, pair in enumerate(pairs, 1) if pair[0] != pair[1])
    return None


def digest(texts: Mapping[str, str]) -> str:
    """Returns the first digits of a digest of all these texts under their names."""
    content = hashlib.sha256("".join(f"{name}\n{text}\n" for name, text in texts.items()).encode())
    return content.hexdigest()[:16]
