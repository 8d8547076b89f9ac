"""Where code stands in the sources: file, line, name and checksum of each code object, found out once in a process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import CodeType

from fusioncache.accelerators.programs.introspection import shorten_file, sum_code
from fusioncache.accelerators.programs.literals import digest

LONGEST_NAME = 200
"""Characters of the longest name that is written out."""


class CodePlaces:
    """Places of code objects, which are kept alive with them, as an id may be given away again."""

    __slots__ = ("_codes", "_files", "_places")

    def __init__(self) -> None:
        """Knows of none yet."""
        self._places: dict[int, str] = {}
        self._files: dict[str, str] = {}
        self._codes: list[CodeType] = []

    def find(self, code: CodeType) -> str:
        """Returns where a code object stands in the sources; empty if that is foreign."""
        text = self._places.get(id(code))
        return self._find_out(code) if text is None else text

    def find_chain(self, codes: Sequence[CodeType]) -> str:
        """Returns where the code of functions stands of which each wraps the next; empty if one is foreign."""
        places = list(map(self.find, codes))
        text = " of ".join(places) if all(places) else ""
        return text if len(text) <= LONGEST_NAME else f"{places[-1]} {digest(text)}"

    def _find_out(self, code: CodeType) -> str:
        file = self._files.get(code.co_filename)
        if file is None:
            file = self._files[code.co_filename] = shorten_file(code.co_filename)
        text = ""
        with suppress(ValueError):  # what has other constants than code comes with is not what stands in the sources
            text = f"{file}:{code.co_firstlineno}:{code.co_qualname} {sum_code(code):x}" if file else ""
        self._codes.append(code)
        self._places[id(code)] = text
        return text
