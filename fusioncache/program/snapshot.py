"""What objects refer to at one moment: whether it is the same later is known in a few milliseconds.

To name ten thousand functions takes many times as long as to compare, one by one and by identity, what they refer to.
Python's collector is asked what that is, in C: the fields of an object, the code, the defaults and the cells of a
function. What it leaves out is asked beside it: the keys of dictionaries, and in which order their values are. Behind
each object comes a mark, so that what went over from one to the next is seen. A tuple never refers to anything else: it
is opened once. Nothing of an object's own is called, and none is asked for its ``id``, which is an event for hooks that
audit.

Most objects are functions, cells and dictionaries. While their fields in memory are what they were (``fields.py``),
nobody is asked.
"""

from __future__ import annotations

import gc
import types
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import is_
from types import CellType, FunctionType
from typing import Any

from fusioncache.program.fields import Fields, split_readable
from fusioncache.program.introspection import is_dictionary

_DEEPEST = 100
_MOST = 500_000
"""How deep functions are opened, and how many objects their parts may refer to at one depth. What goes beyond refers to
itself."""

_MARK = (object(),)
"""Stands behind each object, and refers to what nothing else refers to."""

_FIXED = frozenset(
    {
        tuple,
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.ClassMethodDescriptorType,
        types.GetSetDescriptorType,
        types.MemberDescriptorType,
    }
)
"""Types whose objects refer to the same as long as they live."""


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Objects, and what they referred to.

    Attributes:
        objects: they, with marks.
        referents: what they referred to.
        tables: the keys, then the values of each dictionary that was not empty, with marks.
        contents: what was in them.
        fields: of all these objects.
    """

    objects: Sequence[Any]
    referents: Sequence[Any]
    tables: Sequence[Iterable[Any]]
    contents: Sequence[Any]
    fields: Fields

    @classmethod
    def take(cls, objects: Sequence[Any], asked: Sequence[Any], tables: Sequence[Iterable[Any]] = ()) -> Layer:
        """Returns a layer of objects, of which these are asked what they refer to, and these tables."""
        fields = Fields(objects)
        layer = cls(asked, gc.get_referents(*asked), tables, [*chain.from_iterable(tables)], fields)
        fields.confirm()
        return layer

    def holds(self) -> bool:
        """Tells whether each object refers to the very same ones."""
        return self.fields.hold(self._refers_to_the_same)

    def _refers_to_the_same(self) -> bool:
        if not are_same(gc.get_referents(*self.objects), self.referents):
            return False
        # Where as many stand between two marks, keys and values are as many as they were.
        return are_same([*chain.from_iterable(self.tables)], self.contents)


class Snapshot:
    """Objects and what they refer to: of each function, also of one that only another object refers to, its parts too.

    Args:
        objects: what one of them consists of is among them as well, unless it is a function or a part of one.
        beside: another snapshot. Whoever asks this one has asked that one before, so that functions that are opened
            there are not opened here.
    """

    __slots__ = ("_layers",)

    def __init__(self, objects: Iterable[Any], beside: Snapshot | None = None):
        self._layers = tuple(_open(tuple(objects), beside._list_functions() if beside else {}))

    def _list_functions(self) -> dict[FunctionType, None]:
        """Returns the functions that are opened."""
        opened = chain.from_iterable(layer.objects for layer in self._layers)
        return {each: None for each in opened if type(each) is FunctionType}

    def holds(self) -> bool:
        """Tells whether each object refers to the very same ones as when the snapshot was taken.

        As long as one layer does, the next one consists of the same objects.
        """
        return all(layer.holds() for layer in self._layers)


def are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Tells whether two sequences are of the very same objects, in the same order. None of them is asked anything."""
    return len(some) == len(others) and all(map(is_, some, others))


def _open(objects: Collection[Any], known: Mapping[FunctionType, None]) -> Iterator[Layer]:
    """Yields objects, then the functions among them and what they refer to, then parts of these, and so on."""
    first = _look_at(each for each in objects if type(each) is not FunctionType and type(each) not in _FIXED)
    yield from first
    yield from _open_functions(_find_functions((*objects, *_list_found(first))), known)


def _open_functions(found: Iterable[FunctionType], known: Mapping[FunctionType, None]) -> Iterator[Layer]:
    """Yields what functions refer to, then what their parts refer to; functions inside of others are such parts."""
    opened = dict(known)
    for _ in range(_DEEPEST):
        functions = {each: None for each in found if each not in opened}
        opened.update(functions)
        for each in functions:
            each.__annotations__  # noqa: B018  (Python makes a dictionary of them when they are asked for first)
        if not functions:
            return
        beside = _look_at(part for function in functions for part in _list_parts(function))
        # Its code and its names are in one order, and never missing: marks would say no more.
        layers = (Layer.take((*functions,), (*functions,)), *beside)
        if sum(len(layer.referents) for layer in layers) > _MOST:
            break
        yield from layers
        found = _find_functions(_list_found(layers))
    yield Layer((), [object()], (), (), Fields([object()]))  # nobody knows


def _list_found(layers: Iterable[Layer]) -> list[Any]:
    return [*chain.from_iterable((*layer.referents, *layer.contents) for layer in layers)]


def _list_parts(function: FunctionType) -> Iterator[Any]:
    """Yields what may change in a function while it refers to the same. What it is annotated with does nothing."""
    yield function.__dict__
    yield from (function.__closure__ or ())
    if function.__kwdefaults__ is not None:
        yield function.__kwdefaults__


def _look_at(objects: Iterable[Any]) -> tuple[Layer, ...]:
    """Returns what objects refer to, first of those whose fields can be read."""
    return tuple(map(_look_at_all, filter(None, split_readable(objects))))


def _look_at_all(objects: Sequence[Any]) -> Layer:
    dictionaries: list[dict[Any, Any]] = []
    filled, empty, others = list[Any](), list[Any](), list[Any]()
    for each in objects:
        kind = type(each)
        if kind is CellType:
            (filled if gc.get_referents(each) else empty).append(each)
        elif kind is dict and not each:
            empty.append(each)
        elif is_dictionary(kind):
            dictionaries.append(each)
            others += () if kind is dict else (each,)
        else:
            others.append(each)
    ordered = (each for each in dictionaries if type(each) is OrderedDict)  # its order is not that of the dict in it
    pairs: Iterable[tuple[Iterable[Any], ...]] = ((dict.keys(each), dict.values(each), _MARK) for each in dictionaries)
    # A cell refers to one object at most, so that filled ones need no marks; an empty one gets a referent first.
    looked_at = (*mark(others), *filled, _MARK, *empty)
    return Layer.take(objects, looked_at, (*chain.from_iterable(pairs), *mark(ordered)))


def mark(objects: Iterable[Any]) -> tuple[Any, ...]:
    """Returns objects with a mark behind each, so that nothing goes over from one to the next unnoticed."""
    return (*chain.from_iterable(zip(objects, repeat(_MARK))),)


def _find_functions(objects: Iterable[Any]) -> dict[FunctionType, None]:
    """Returns the functions among objects, and in the tuples among these, in an order."""
    return dict.fromkeys(each for each in _open_tuples(objects) if type(each) is FunctionType)


def _open_tuples(objects: Iterable[Any]) -> Iterator[Any]:
    """Yields objects, then what is in the tuples among them, and in the tuples in these."""
    found = list(objects)
    while found:
        yield from found
        tuples = [each for each in found if type(each) is tuple]
        found = gc.get_referents(*tuples) if tuples else []
