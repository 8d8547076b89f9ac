"""What Python keeps of classes and modules, read in C: below whatever a metaclass or a subclass has in its place."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any


class _Absent:
    """What is found where nothing is."""


ABSENT = _Absent()

mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
namespace_of: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__
contents_of_module: Callable[[types.ModuleType], dict[str, Any]] = vars(types.ModuleType)["__dict__"].__get__

_flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__
_HEAP = 1 << 9
_IMMUTABLE = 1 << 8
_DICTIONARY = 1 << 29


def is_static(cls: type) -> bool:
    """Returns whether a class is a part of a program written in C, so that nobody can give it another attribute."""
    return not _flags_of(cls) & _HEAP


def is_written_in_python(cls: type) -> bool:
    """Returns whether a class is one whose attributes can be set, as those that a ``class`` statement makes."""
    return _flags_of(cls) & (_HEAP | _IMMUTABLE) == _HEAP


def is_dictionary(cls: type) -> bool:
    """Returns whether the instances of a class are dictionaries."""
    return bool(_flags_of(cls) & _DICTIONARY)


def is_derived(cls: type, base: type) -> bool:
    """Returns whether a class is another one or derived from it, whatever their metaclasses would say."""
    return any(each is base for each in mro_of(cls))


def find_in_class(cls: type, name: str) -> Any:
    """Returns what a class, or the first one of those that it is derived from, has under a name, or ``ABSENT``."""
    return find_in_first(mro_of(cls), name)


def find_in_first(classes: Iterable[type], name: str) -> Any:
    """Returns what the first of these classes that has the name in its own body has there, or ``ABSENT``."""
    return next((namespace_of(each)[name] for each in classes if name in namespace_of(each)), ABSENT)


def are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Returns whether two sequences are of the very same objects, in the same order. No code of theirs is called."""
    return len(some) == len(others) and all(map(is_, some, others))


def consists_of(parts: Iterable[Iterable[Any]], known: Iterable[Any]) -> bool:
    """Returns whether the items of some containers, one after the other, are the very same as those that are known."""
    end = (object(),)
    return all(map(is_, chain(chain.from_iterable(parts), end), chain(known, end)))


def ids_of(*kinds: type) -> frozenset[int]:
    """Returns the identities of types, to look a type up: its own equality may be code of its metaclass."""
    return frozenset(map(id, kinds))


def by_identity[T](*pairs: tuple[type, T]) -> dict[int, T]:
    """Returns a table of what there is for each type, by its identity: its own hash may be code of its metaclass."""
    return {id(kind): value for kind, value in pairs}
