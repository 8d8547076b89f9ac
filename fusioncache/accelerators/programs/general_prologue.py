"""The faster prologue of programs that differ only in numbers: written once, filled in for each.

How a prologue is written anew is in ``steps/prologue.py``. It is read by Python twice for that, which takes
longer than all else in making a program at a further size. Here that is done for the text with marks; what comes of it
has other constants at each size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

from fusioncache.accelerators.programs.derived import FUNCTION_OBJECT
from fusioncache.accelerators.programs.general_text import GeneralText, Words
from fusioncache.accelerators.steps.prologue import NewPrologue, check_prologue, name_file, write


class GeneralPrologue:
    """The prologue of all programs of one general program.

    Args:
        text: of the prologue.
    """

    __slots__ = ("_text", "_written")

    def __init__(self, text: GeneralText):
        self._text = text
        self._written: tuple[Mapping[str, Any], NewPrologue] | None = None

    def rewrite(self, prologue: Callable[..., Any], words: Words) -> Callable[..., Any]:
        """Returns a function that does what the prologue of one program does, in a fraction of the time.

        Args:
            prologue: was made of the text that is filled in.
            words: what went into its places.

        Raises:
            Declined: if it is not as Thunder writes.
        """
        function = check_prologue(prologue)
        context = {name: value for name, value in function.__globals__.items() if name != FUNCTION_OBJECT}
        written = self._find(context)
        if written is None:
            (code,) = (each for each in self._text.code.co_consts if _is_of(function, each))
            written = write(self._text.marked, code, function.__globals__)
            self._written = context, written
        code = words.fill_code(written.code, name_file(function.__code__.co_filename))
        return replace(written, text=words.fill_text(written.text), code=code).bind(function)

    def _find(self, context: Mapping[str, Any]) -> NewPrologue | None:
        """Returns what was written for a prologue with the very same globals, whose values its conditions have."""
        if self._written is None:
            return None
        known, written = self._written
        is_same = known.keys() == context.keys() and all(known[name] is value for name, value in context.items())
        return written if is_same else None


def _is_of(function: FunctionType, constant: object) -> bool:
    return isinstance(constant, CodeType) and constant.co_name == function.__name__
