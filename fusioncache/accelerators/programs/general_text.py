"""The text of a trace with places for numbers and names: cut into pieces, and compiled once for all that may go there.

To look for numbers in the texts of a model of a few layers, and to have Python compile what comes of it, takes tens of
milliseconds at each new size. But it is known where the numbers are, and nothing else changes. So a text is cut there,
and Python compiles it with a *mark* in the place of each number, which is a number that no text has. The code of a text
that is filled in is that code with other constants and other names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from fusioncache.accelerators.programs.build import compile_trace, name_file
from fusioncache.accelerators.programs.general import TEMPLATE, WORD, GeneralProgram, read_number
from fusioncache.accelerators.programs.text import TraceText
from fusioncache.accelerators.sizes.expressions import Expression, Float, gives_float
from fusioncache.ir import Declined, Scope

_FIRST, _DIGITS = "7317317", 9
"""What a mark begins with, and how many other digits it has, which say for which number it stands."""
_MARK = re.compile(rf"{_FIRST}(\d{{{_DIGITS}}})(?:\.0)?")
_MARKS = range(int(_FIRST) * 10**_DIGITS, (int(_FIRST) + 1) * 10**_DIGITS)
_WITHOUT_NUMBERS = (type(None), bool, complex, type(...))


@dataclass(frozen=True, slots=True)
class Words:
    """What goes into the places of a program's texts.

    Attributes:
        numbers: by their position in the general program.
        names: of templates, by what stands for them.
    """

    numbers: Sequence[int | float]
    names: Mapping[str, str]

    def list_all(self) -> list[str]:
        """Returns the numbers, and then the names."""
        return [*map(str, self.numbers), *(self.names[f"{TEMPLATE}{number}"] for number in range(len(self.names)))]

    def fill_text(self, text: str) -> str:
        """Returns a text with these numbers for marks."""
        return _MARK.sub(lambda found: str(self.numbers[int(found[1])]), text)

    def fill_code(self, code: CodeType, file: str) -> CodeType:
        """Returns code with these numbers for marks, and with these names, as that of another file."""
        return code.replace(
            co_consts=tuple(self._fill_constant(each, file) for each in code.co_consts),
            co_names=tuple(self.names.get(each, each) for each in code.co_names),
            co_filename=file,
        )

    def _fill_constant(self, constant: Any, file: str) -> Any:
        match constant:
            case bool():
                return constant
            case int() | float():
                is_mark = _MARKS.start <= constant < _MARKS.stop
                return self.numbers[int(constant) - _MARKS.start] if is_mark else constant
            case str():
                return self.fill_text(constant)
            case tuple() | frozenset():
                return type(constant)(self._fill_constant(each, file) for each in constant)
            case CodeType():
                return self.fill_code(constant, file)
        return constant


@dataclass(frozen=True, slots=True)
class GeneralText:
    """A text with places.

    Attributes:
        pieces: what stands before, between and behind the places.
        places: which word goes into each, by its position among all.
        marked: the text, with marks for numbers.
        code: of that.
    """

    pieces: tuple[str, ...]
    places: tuple[int, ...]
    marked: str
    code: CodeType

    @classmethod
    def cut(cls, trace: TraceText, general: GeneralProgram) -> GeneralText:
        """Cuts a text of a general program, and compiles it.

        Raises:
            Declined: if a number is where none can be filled in.
        """
        if _FIRST in trace.source or _FIRST in str(general.values):
            raise Declined("one of its numbers may be another size", Scope.LENGTH)
        pieces, places, end = [""], [], 0
        for found in WORD.finditer(trace.source):
            pieces[-1] += trace.source[end : found.start()]
            end = found.end()
            place = _find_place(found[0], general)
            if isinstance(place, str):
                pieces[-1] += place
            else:
                places.append(place)
                pieces.append("")
        pieces[-1] += trace.source[end:]
        marks = [_make_mark(*item) for item in enumerate(general.values)]
        names = {name: name for name in general.places.templates()}
        marked = _join(pieces, places, Words(marks, names).list_all())
        return cls(tuple(pieces), tuple(places), marked, _compile(replace(trace, source=marked)))

    def fill(self, trace: TraceText, words: Words, listed: Sequence[str]) -> tuple[TraceText, CodeType]:
        """Returns a trace with the text that has these words, and the code of that.

        Args:
            trace: the trace, with another text.
            words: the words.
            listed: all of them.
        """
        filled = replace(trace, source=_join(self.pieces, self.places, listed))
        return filled, words.fill_code(self.code, name_file(filled))


def _find_place(word: str, general: GeneralProgram) -> int | str:
    """Returns the place of a word among all; of one that is always the same, that."""
    if word.startswith(TEMPLATE):
        return len(general.values) + int(word.removeprefix(TEMPLATE))
    position = read_number(word)
    if not isinstance(position, int):
        return word
    match general.values[position]:
        case (int() | Float() as constant,):
            return str(constant)
    return position


def _make_mark(position: int, expressions: Sequence[Expression]) -> int | float:
    return float(_MARKS[position]) if any(map(gives_float, expressions)) else _MARKS[position]


def _join(pieces: Sequence[str], places: Sequence[int], words: Sequence[str]) -> str:
    found = [""] * (len(pieces) + len(places))
    found[::2], found[1::2] = pieces, map(words.__getitem__, places)
    return "".join(found)


def _compile(trace: TraceText) -> CodeType:
    """Compiles a text with marks.

    Raises:
        Declined: if it is no Python, or a mark is in what is no number, text or collection of these.
    """
    try:
        code = compile_trace(trace)
    except ValueError as error:
        raise Declined(str(error), Scope.LENGTH) from error
    for constant in _list_constants(code.co_consts):
        if not isinstance(constant, (int, float, str, *_WITHOUT_NUMBERS)):
            raise Declined(f"it has a constant of type {type(constant).__qualname__}", Scope.LENGTH)
    return code


def _list_constants(constants: Sequence[Any] | frozenset[Any]) -> list[Any]:
    found: list[Any] = []
    for each in constants:
        nested = each.co_consts if isinstance(each, CodeType) else each if isinstance(each, tuple | frozenset) else None
        found += [each] if nested is None else _list_constants(nested)
    return found
