"""What objects refer to at one moment: whether it is the same later is known in a few milliseconds.

To name ten thousand functions takes many times as long as to compare, one by one and by identity, what they refer to.
Nothing of an object's own is called, and none is asked for its ``id``, which is an event for hooks that audit.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from operator import is_
from types import CellType, FunctionType
from typing import Any

_DEEPEST = 100
_MOST = 500_000
"""How deep functions are opened, and how many objects they may refer to. Beyond that they refer to themselves."""


class Snapshot:
    """Objects and what they refer to: of functions also what their attributes, defaults, and closures hold.

    Args:
        objects: whatever an object among these consists of is among them too, but for what a function does.
    """

    __slots__ = ("_functions", "_others", "_referents")

    def __init__(self, objects: Iterable[Any]):
        objects = tuple(objects)
        self._functions = [each for each in objects if type(each) is FunctionType]
        self._others = [each for each in objects if type(each) is not FunctionType]
        self._referents = self._look()

    def holds(self) -> bool:
        """Tells whether each object refers to the very same ones as when the snapshot was taken."""
        now = self._look()
        return len(now) == len(self._referents) and all(map(_are_same, now, self._referents))

    def _look(self) -> list[list[Any]]:
        return [gc.get_referents(*self._others), *_open_functions(self._functions)]


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def _open_functions(functions: Sequence[FunctionType]) -> Iterable[list[Any]]:
    """Yields what functions refer to, then what their parts refer to, functions around which they are among these."""
    opened, parts = set(functions), list[Any](functions)
    for _ in range(_DEEPEST):
        if not parts:
            return
        referents = gc.get_referents(*parts)
        if len(referents) > _MOST:
            break
        yield referents
        inner = {each for each in referents if type(each) is FunctionType} - opened
        opened |= inner
        # The names of a module, which each function refers to, are no part of it.
        parts = [
            each
            for each in referents
            if (kind := type(each)) is tuple or kind is CellType or (kind is dict and "__name__" not in each)
        ]
        parts += inner
    yield [object()]  # nobody knows: it is another one each time
