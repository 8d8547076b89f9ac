"""Arguments and results: plain containers, of which each item can be found, counted and exchanged."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from fusioncache.ir.errors import Declined, Scope

_MOST_ITEMS = 10_000


def exchange(value: Any, new: Callable[[Any], Any], *, anew: bool = False) -> Any:
    """Returns the same structure with other leaves; the very same object if no leaf is another.

    Args:
        value: a leaf, or a container.
        new: returns what to have in place of a leaf.
        anew: whether lists and dicts are always others, as somebody may change them.

    Raises:
        Declined: if an item of something changed that is no plain container.
    """
    if isinstance(value, tuple | list):
        items = [exchange(each, new, anew=anew) for each in value]
        if not (anew and type(value) is list) and all(one is other for one, other in zip(value, items, strict=True)):
            return value
        return _make_alike(value, items)
    if isinstance(value, dict):
        changed = {key: exchange(each, new, anew=anew) for key, each in value.items()}
        if not (anew and type(value) is dict) and all(value[key] is each for key, each in changed.items()):
            return value
        if type(value) not in (dict, OrderedDict):
            raise Declined(type(value).__name__, Scope.STRUCTURE)
        return type(value)(changed)
    if isinstance(value, slice):
        parts = value.start, value.stop, value.step
        others = [exchange(each, new) for each in parts]
        return value if all(map(_is_same, parts, others)) else slice(*others)
    return new(value)


def _make_alike(value: tuple[Any, ...] | list[Any], items: list[Any]) -> Any:
    """Returns a tuple or a list of the same kind.

    Raises:
        Declined: if no object of the kind can be made of these items.
    """
    import torch

    kind: Any = type(value)
    if kind in (tuple, list) or (kind is torch.Size and all(isinstance(each, int) for each in items)):
        return kind(items)
    if isinstance(value, tuple) and hasattr(kind, "_fields"):  # a named one, of which nothing is called
        return tuple.__new__(kind, items)
    raise Declined(kind.__name__, Scope.STRUCTURE)


def _is_same(one: Any, other: Any) -> bool:
    return one is other


def find_leaves(value: Any) -> Iterator[Any]:
    """Yields what is in plain containers, keys and members of sets as well; whatever else is a leaf.

    Raises:
        Declined: if there are too many.
    """
    pending, count = [value], 0
    while pending:
        each = pending.pop()
        count += 1
        if count > _MOST_ITEMS:
            raise Declined("a large container", Scope.STRUCTURE)
        if isinstance(each, tuple | list | set | frozenset):
            pending += each
        elif isinstance(each, dict):
            pending += (*each.keys(), *each.values())
        elif isinstance(each, slice):
            pending += (each.start, each.stop, each.step)
        else:
            yield each
