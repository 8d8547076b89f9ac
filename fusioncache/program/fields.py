"""The memory in which functions, cells and dictionaries keep what they refer to, read for thousands of them at once.

Python's collector lists what objects refer to one by one, and touches all of that: a dozen objects for each function,
far apart in memory. To read only the addresses of these, where the object keeps them, takes a fraction of the time.
While what was there is kept alive, the same addresses are the same objects. Of a dictionary its version is read, a
number that no dictionary had before, which it gets with each change (PEP 509).

An object with attributes has the address of its dictionary before itself, once somebody asked for that dictionary.

Other addresses need not mean that anything is another thing: a dictionary may be as it was again. So whoever finds
others asks in another way as well. Nothing is written, and nothing is read where CPython lays objects out otherwise or
where nobody may look at memory.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import BuiltinFunctionType, CellType, FunctionType, MemberDescriptorType
from typing import Any

import numpy
from numpy.typing import NDArray

from fusioncache.program.introspection import is_written_in_python, mro_of, namespace_of

_WORD = ctypes.sizeof(ctypes.c_void_p)
_Memory = ctypes.c_char * (1 << 46)
"""All that may lie behind an object. A type for each piece would be a cycle each, which only the collector frees."""
_size_of: Callable[[type], int] = type.__dict__["__basicsize__"].__get__
_dictionary_of: Callable[[type], int] = type.__dict__["__dictoffset__"].__get__
_flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """Where the objects of a type keep what they refer to.

    Attributes:
        size: of such an object, in words of memory.
        fields: which of these words they are, or of those before it.
    """

    size: int
    fields: tuple[int, ...]


_COUNT, _CLASS, _HEAD = 0, 1, 2
"""The first words of each object are how often it is referred to, and its class."""

_TABLE = -3
"""Before an object, the address of its dictionary: ``_PyObject_DictOrValuesPointer`` in ``pycore_object.h``. An odd one
is no dictionary's. Until somebody asks for that there is none, and what would be in it lies elsewhere."""
_HAS_TABLE = 1 << 4
"""``Py_TPFLAGS_MANAGED_DICT``."""


class _Pair:
    """Stands for all objects that are nothing but slots."""

    __slots__ = ("first", "second")


class _OtherPair:
    __slots__ = ("first", "second")


class _Open:
    """Stands for all objects that are nothing but slots and a dictionary."""


class _OtherOpen:
    pass


LAYOUTS: Mapping[type, FieldLayout] = {
    # From ``func_globals`` to ``func_typeparams`` without ``func_weakreflist``.
    FunctionType: FieldLayout(18, (*range(2, 12), *range(13, 16))),
    # ``m_self`` and ``m_module``.
    BuiltinFunctionType: FieldLayout(7, (3, 4)),
    CellType: FieldLayout(3, (2,)),
    # ``ma_version_tag``.
    dict: FieldLayout(6, (3,)),
    _Pair: FieldLayout(4, (1, 2, 3)),
    _Open: FieldLayout(2, (1, _TABLE)),
}
"""The structures in ``Include/cpython`` of CPython 3.12, in words."""


def _make_function() -> FunctionType:
    return FunctionType((lambda: None).__code__, {})


def _make_open() -> _Open:
    made = _Open()
    vars(made)["first"] = 1
    return made


_Changes = Sequence[Callable[[Any], object]]
_CHANGES: Mapping[type, tuple[Callable[[], Any], _Changes]] = {
    FunctionType: (
        _make_function,
        (
            lambda function: setattr(function, "__code__", (lambda: 1).__code__),
            lambda function: setattr(function, "__defaults__", (1,)),
            lambda function: setattr(function, "__kwdefaults__", {}),
            lambda function: setattr(function, "__dict__", {}),
            lambda function: setattr(function, "__name__", "another"),
            lambda function: setattr(function, "__qualname__", "another"),
            lambda function: setattr(function, "__module__", "another"),
        ),
    ),
    BuiltinFunctionType: (lambda: [].append, (lambda function: setattr(function, "__module__", "another"),)),
    CellType: (
        CellType,
        (
            lambda cell: setattr(cell, "cell_contents", 1),
            lambda cell: setattr(cell, "cell_contents", 2),
            lambda cell: delattr(cell, "cell_contents"),
        ),
    ),
    dict: (
        dict,
        (
            lambda table: table.update(a=1),
            lambda table: table.update(a=2),
            lambda table: table.setdefault("b", 2),
            lambda table: table.update(a=table.pop("a")),
            lambda table: table.popitem(),
            lambda table: table.clear(),
        ),
    ),
    _Pair: (
        _Pair,
        (
            lambda pair: setattr(pair, "second", 1),
            lambda pair: setattr(pair, "first", 1),
            lambda pair: setattr(pair, "first", 2),
            lambda pair: delattr(pair, "second"),
            lambda pair: setattr(pair, "__class__", _OtherPair),
        ),
    ),
    _Open: (
        _make_open,
        (
            lambda made: setattr(made, "__dict__", {}),
            lambda made: setattr(made, "__class__", _OtherOpen),
        ),
    ),
}
"""How an object of each type is made, and what is done to it then, each of which its fields have to show."""


class Words:
    """Words of memory, which are read in one call.

    Other threads may run meanwhile. Each word is read as a whole: what they change is seen, or comes later.

    Args:
        places: their addresses, in words, of shape (words,). Whoever has this keeps alive what is there.
    """

    __slots__ = ("_memory", "_places")

    def __init__(self, places: NDArray[numpy.intp]):
        first = int(places.min())
        self._memory = numpy.frombuffer(_Memory.from_address(first * _WORD), dtype=numpy.uintp)
        self._places = places - first

    def read(self) -> NDArray[numpy.uintp]:
        """Returns what is in them now."""
        return self._memory.take(self._places, mode="clip")


class Fields:
    """The fields of objects, as they were at one moment.

    Whoever has this keeps the objects alive, and what they referred to at that moment.

    Args:
        objects: if nobody knows where the fields of one of them are, none is read, and ``hold`` asks each time.
    """

    __slots__ = ("_known", "_words")

    def __init__(self, objects: Sequence[Any]):
        self._words: Words | None = None
        with suppress(Exception):  # a hook that audits, and forbids it by now
            places = find_places(objects)
            if places is not None:
                self._words = Words(places)
                self._known = self._words.read()

    def confirm(self) -> None:
        """Gives the fields up if another thread changed one since they were read: nobody keeps alive what was there."""
        if self._words is not None and not numpy.array_equal(self._words.read(), self._known):
            self._words = None

    def hold(self, ask: Callable[[], bool]) -> bool:
        """Tells whether the objects refer to what they referred to at that moment.

        Args:
            ask: tells it in another way. It is asked where there is something else in the fields, or nobody reads them.
        """
        if self._words is None:
            return ask()
        found = self._words.read()
        if numpy.array_equal(found, self._known):
            return True
        is_same = ask()
        if is_same and numpy.array_equal(self._words.read(), found):
            self._known = found
        return is_same


def find_places(objects: Sequence[Any]) -> NDArray[numpy.intp] | None:
    """Returns the addresses of the fields of objects, in words; None if those of one of them are not known."""
    places = []
    for kind, found in _group_by_type(objects):
        layout = find_layout(kind)
        if layout is None:
            return None
        places.append((_find_beginnings(found)[:, None] + numpy.array(layout.fields, dtype=numpy.intp)).ravel())
    # In the order of memory, in which they are read sooner.
    return numpy.sort(numpy.concatenate(places)) if places else None


def split_readable(objects: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Returns the objects of which the fields can be read, and those of which they cannot."""
    readable, others = list[Any](), list[Any]()
    for kind, found in _group_by_type(objects):
        layout = find_layout(kind)
        if layout is None:
            others += found
        elif _TABLE not in layout.fields:
            readable += found
        else:
            for each, table in zip(found, _read_tables(found), strict=True):
                (readable if _is_dictionary(table) else others).append(each)
    return readable, others


def _read_tables(objects: Sequence[Any]) -> list[int]:
    """Returns where each object keeps its dictionary."""
    return Words(_find_beginnings(objects) + _TABLE).read().tolist()


def _is_dictionary(table: int) -> bool:
    return table != 0 and table % 2 == 0


def _group_by_type(objects: Iterable[Any]) -> Iterable[tuple[type, list[Any]]]:
    kinds: dict[int, tuple[type, list[Any]]] = {}
    for each in objects:
        kinds.setdefault(id(type(each)), (type(each), []))[1].append(each)
    return kinds.values()


def _find_beginnings(objects: Sequence[Any]) -> NDArray[numpy.intp]:
    """Returns the addresses of objects, in words."""
    return numpy.array(list(map(id, objects)), dtype=numpy.intp) // _WORD


def find_layout(kind: type) -> FieldLayout | None:
    """Returns where the objects of a type have their fields, if those are known and are all that there is of them."""
    known = KNOWN.get(id(kind))
    return known if known is not None or not KNOWN else find_attributes(kind)


def find_attributes(kind: type) -> FieldLayout | None:
    """Returns where objects of a class keep their class, slots and dictionary, if they consist of nothing else.

    What is in the dictionary is for those to see who look at the dictionary itself.
    """
    *bases, last = mro_of(kind)
    if last is not object or not all(map(is_written_in_python, bases)):
        return None
    has_table = bool(_flags_of(kind) & _HAS_TABLE)
    if _dictionary_of(kind) and not has_table:
        return None
    members = ((base, each) for base in bases for each in namespace_of(base).values())
    slots = sum(type(each) is MemberDescriptorType and each.__objclass__ is base for base, each in members)
    size = _HEAD + slots
    if _size_of(kind) != size * _WORD or not (slots or has_table):
        return None
    return FieldLayout(size, (_CLASS, *range(_HEAD, size), *([_TABLE] if has_table else ())))


def find_layouts() -> Mapping[int, FieldLayout]:
    """Returns where fields are, by the identities of types; nothing if one is laid out otherwise than thought here."""
    try:
        if sys.implementation.name != "cpython" or sys.version_info[:2] != (3, 12):
            return {}
        known = {id(kind): layout for kind, layout in LAYOUTS.items() if _is_laid_out(kind, layout)}
        return known if len(known) == len(LAYOUTS) else {}
    except Exception:  # a hook that audits and forbids it
        return {}


def _is_laid_out(kind: type, layout: FieldLayout) -> bool:
    """Tells whether an object's fields lie in it, and show each change."""
    inside = [field for field in layout.fields if field != _TABLE]
    if kind.__basicsize__ != layout.size * _WORD or not all(_COUNT < field < layout.size for field in inside):
        return False
    make, changes = _CHANGES[kind]
    changed = make()
    if _TABLE in layout.fields and not _has_table_there(kind, changed):
        return False
    words = Words(id(changed) // _WORD + numpy.array(layout.fields, dtype=numpy.intp))
    for change in changes:
        before = words.read()
        change(changed)
        if numpy.array_equal(words.read(), before):
            return False
    return True


def _has_table_there(kind: type, filled: Any) -> bool:
    """Tells whether an object's dictionary is where it should be, and not if nobody asked for it."""
    new = kind()
    new.first = 1
    unasked, table = _read_tables([new, filled])
    return table == id(vars(filled)) and not _is_dictionary(unasked)


KNOWN = find_layouts()
"""Where the fields of objects are, by the identities of their types; nothing if nobody can read them."""
