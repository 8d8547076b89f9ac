"""What objects refer to at one moment: whether it is the same later is known in a few milliseconds.

To name ten thousand functions takes many times as long as to compare, one by one and by identity, what they refer to.
Nothing of an object's own is called, and none is asked for its ``id``, which is an event for hooks that audit.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from types import CellType, CodeType, FunctionType
from typing import Any

_DEEPEST = 100
_MOST = 500_000
"""How deep functions are opened, and how many objects their parts may refer to at one depth. What goes beyond refers to
itself."""

Layer = tuple[Sequence[Any], Sequence[Any]]
"""Objects, and what they refer to."""


class Snapshot:
    """Objects and what they refer to: of each function, also of one that only another object refers to, its parts too.

    Args:
        objects: what one of them consists of is among them as well, unless it is a function or a part of one.
    """

    __slots__ = ("_layers",)

    def __init__(self, objects: Iterable[Any]):
        self._layers = list(_open(tuple(objects)))

    def holds(self) -> bool:
        """Tells whether each object refers to the very same ones as when the snapshot was taken.

        As long as one layer does, the next one consists of the same objects.
        """
        return all(_are_same(gc.get_referents(*objects), referents) for objects, referents in self._layers)


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def _open(objects: Collection[Any]) -> Iterator[Layer]:
    """Yields objects, then the functions among them and what they refer to, then parts of these, and so on."""
    others = [each for each in objects if type(each) is not FunctionType]
    referents = gc.get_referents(*others)
    yield others, referents
    # In an order, as what is compared is lists.
    yield from _open_functions(dict.fromkeys(each for each in (*objects, *referents) if type(each) is FunctionType))


def _open_functions(functions: Collection[FunctionType]) -> Iterator[Layer]:
    """Yields what functions refer to, then what their parts refer to; functions inside of others are such parts."""
    opened, parts = set(functions), list[Any](functions)
    for _ in range(_DEEPEST):
        if not parts:
            return
        referents = gc.get_referents(*parts)
        if len(referents) > _MOST:
            break
        yield parts, referents
        inner = dict.fromkeys(each for each in referents if type(each) is FunctionType and each not in opened)
        opened.update(inner)
        parts = [*(each for each in referents if _is_part(each)), *inner]
    yield (), [object()]  # nobody knows


def _is_part(value: Any) -> bool:
    """Tells whether a value is a tuple, a cell or a dictionary of a function; the names of its module are no part."""
    kind = type(value)
    return kind is tuple or kind is CellType or (kind is dict and "__name__" not in value)


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """Lines that were made of the names of values.

    Attributes:
        names: what the values are called where they are.
        values: in their order. They are kept alive.
        lines: what was made.
    """

    names: tuple[str, ...]
    values: tuple[Any, ...]
    lines: tuple[str, ...]

    def is_of(self, names: Sequence[str], values: Sequence[Any]) -> bool:
        """Tells whether it was made of these very values, under these names."""
        return self.names == tuple(names) and _are_same(self.values, values)


@dataclass(frozen=True, slots=True)
class WatchedNames:
    """Names of one process, and what they were made of at one moment.

    Attributes:
        names: of values, but for those that the describer took part in: whoever takes the others over has to meet their
            classes, too.
        places: where code stands, by its id.
        chains: the same of functions of which each wraps the next, by the ids of their code.
        codes: what these ids are of.
        snapshot: of all that has these names, which it keeps alive.
        summaries: what was made of these names, by what it is about.
    """

    names: Mapping[int | FunctionType, str]
    places: Mapping[int, str]
    chains: Mapping[tuple[int, ...], str]
    codes: Sequence[CodeType]
    snapshot: Snapshot
    summaries: Mapping[str, Summary]
