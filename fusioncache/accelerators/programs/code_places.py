"""Where code stands in the sources: file, line, name and checksum of each code object, found out once in a process."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType

from fusioncache.accelerators.programs.introspection import shorten_file, sum_code
from fusioncache.accelerators.programs.literals import digest

LONGEST_NAME = 200
"""Characters of the longest name that is written out."""


_known: dict[int, tuple[CodeType, str]] = {}
"""Each code object that was asked for, by its identity, and where it stands."""


def find_place(code: CodeType) -> str:
    """Returns where a code object stands in the sources; empty if that is foreign."""
    known = _known.get(id(code))
    if known is None:
        known = _known[id(code)] = code, _find_out(code)
    return known[1]


def find_places(codes: Sequence[CodeType]) -> str:
    """Returns where the code of functions stands of which each wraps the next; empty if one is foreign."""
    places = list(map(find_place, codes))
    text = " of ".join(places) if all(places) else ""
    return text if len(text) <= LONGEST_NAME else f"{places[-1]} {digest(text)}"


def _find_out(code: CodeType) -> str:
    file = shorten_file(code.co_filename)
    if not file:
        return ""
    try:
        return f"{file}:{code.co_firstlineno}:{code.co_qualname} {sum_code(code):x}"
    except ValueError:  # what has other constants than code comes with is not what stands in the sources
        return ""
