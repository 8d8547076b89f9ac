"""Which values have sizes, and which functions only move values: arguments, containers, methods of containers.

Tensors have shapes, and an integer may be a length itself: Dynamo hands a length over as an integer beside the tensors
that have it. What a program does with such an integer is watched as with any other. 0 and 1 are no lengths: too much is
otherwise there. A batch is often a dictionary of tensors, and what a decoder remembers a list of pairs. The tensors in
such containers have sizes as well, unless something is beside them that may be written as a tensor's sizes are.

The class of ``x.numel`` is an integer that can be called, as torch has a method where Thunder first had a property.
Thunder makes it anew whenever something is looked up in a tensor. A class is taken for it if it is one like ours in all
that a class can have, and its functions look their names up where Thunder's do: then it does what Thunder's does.
"""

from __future__ import annotations

import builtins
import collections
import enum
import functools
import operator
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import CodeType, FunctionType, GetSetDescriptorType
from typing import Any

from fusioncache.ir.errors import Declined, Scope

type Place = int | str | tuple[int | str, ...]
"""Where an argument is: its position, or its name; of what is in one, that and the keys that lead there."""

type ArgumentSizes = Mapping[Place, tuple[int, ...]]
"""Of each argument that has sizes, by its place: the shape of a tensor, or an integer alone."""

_DEEPEST = 8
"""How many containers may be in one another."""


def find_tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[Place, Any]:
    """Returns the arguments of a call that are tensors, and tensors in lists, tuples and dictionaries among them.

    None is of a subclass. What is in containers is left out where a tensor is there twice.
    """
    import torch

    places = _list_places(args, kwargs)
    tensors: dict[Place, Any] = {place: value for place, value in places if type(value) is torch.Tensor}
    inside = chain.from_iterable(_find_inside(place, value) for place, value in places)
    found = {**tensors, **dict(inside)}
    return found if len(set(map(id, found.values()))) == len(found) else tensors


def find_integers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[Place, int]:
    """Returns the arguments of a call that are integers above 1 by themselves, and of no subclass."""
    return {place: value for place, value in _list_places(args, kwargs) if type(value) is int and value > 1}


def find_sizes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> ArgumentSizes:
    """Returns the sizes of the arguments of a call."""
    shapes = {place: tuple(each.shape) for place, each in find_tensors(args, kwargs).items()}
    return {**shapes, **{place: (each,) for place, each in find_integers(args, kwargs).items()}}


def explain_fixed(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Returns which argument has sizes that are no lengths, and why; None if none has."""
    for place, value in _list_places(args, kwargs):
        reason = _explain(place, value)
        if reason is not None:
            return f"{name_argument(place)} {reason}: its sizes are no lengths"
    return None


def _explain(place: int | str, value: Any) -> str | None:
    """Returns why the sizes of an argument are no lengths; None if they are, or there are none."""
    import torch

    if type(value) is torch.Tensor:
        return None
    if issubclass(type(value), torch.Tensor):
        return f"is of type {type(value).__name__}"
    if type(value) not in (dict, list, tuple):
        return None
    try:
        inside = [each for _, each in _open((place,), value)]
    except ValueError as reason:
        return str(reason)
    return "holds a tensor twice" if len(set(map(id, inside))) < len(inside) else None


def name_argument(place: Place) -> str:
    """Returns how people are told of an argument."""
    if isinstance(place, tuple):
        first, *keys = place
        return name_argument(first) + "".join(f"[{key!r}]" for key in keys)
    return f"args[{place}]" if isinstance(place, int) else place


def _list_places(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[tuple[int | str, Any]]:
    return (*enumerate(args), *kwargs.items())


def _find_inside(place: int | str, value: Any) -> Iterable[tuple[Place, Any]]:
    """Returns the tensors in a container; none if anything beside them might be taken for their sizes."""
    if type(value) not in (dict, list, tuple):
        return ()
    try:
        return list(_open((place,), value))
    except ValueError:
        return ()


def _open(way: tuple[int | str, ...], value: Any) -> Iterator[tuple[Place, Any]]:
    """Yields the tensors in a container with their places.

    Raises:
        ValueError: if anything beside them might be taken for their sizes.
    """
    import torch

    if type(value) is torch.Tensor:
        yield way, value
    elif type(value) in (dict, list, tuple) and len(way) <= _DEEPEST:
        # As it is at this moment, whatever another thread does to it.
        for key, each in tuple(value.items() if type(value) is dict else enumerate(value)):
            if not (_is_plain_text(key) or (type(key) is int and key >= 0)):
                raise ValueError("has a key that is no plain text")
            yield from _open((*way, key), each)
    elif not (_is_plain_text(value) or value is None or type(value) in (bool, int, float)):
        name = type(value).__name__
        raise ValueError("holds a text with a parenthesis" if name == "str" else f"holds an object of type {name}")


def _is_plain_text(value: Any) -> bool:
    """True if something is a text with nothing in it that could be taken for the sizes of a tensor."""
    return type(value) is str and "(" not in value


_MOST_ITEMS = 10_000


def exchange(value: Any, new: Callable[[Any], Any], *, anew: bool = False) -> Any:
    """Returns the same structure with other leaves; the very same object if no leaf is another.

    Args:
        value: a leaf, or a container.
        new: returns what to have in place of a leaf.
        anew: whether lists and dicts are always others, as other code may change them.

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
        return value if all(map(operator.is_, parts, others)) else slice(*others)
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


_MOVING = frozenset({
    "append", "extend", "insert", "__init__", "__new__", "__iadd__", "__add__", "copy", "items", "keys", "values",
    "__iter__", "__next__", "__len__", "reverse", "__reversed__", "clear", "popitem",
})  # fmt: skip
"""Methods of containers that do the same whatever the items are."""
_KEYED = frozenset({"__getitem__", "__setitem__", "get", "setdefault", "pop", "__contains__"})
"""Those of which the first argument is looked at, and nothing else."""
_COMPARING = frozenset({"__eq__", "__ne__"})
"""Those that ask the items, which tell of it, if all are integers."""
_FUNCTIONS = (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)
"""What is bound to an object without a question to that."""
_CONTAINERS = (
    list,
    tuple,
    dict,
    collections.OrderedDict,
    slice,
    zip,
    enumerate,
    reversed,
    object,
    types.GeneratorType,
    types.CellType,
    functools.partial,
)

_CONSTANTS = (
    int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range, type, enum.Enum,
    types.ModuleType, types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
)  # fmt: skip
"""Types of values in which there are no sizes."""


_MOVING_FUNCTIONS = (
    getattr, hasattr, iter, next, len, callable, any, all, enumerate, zip,
    functools.partial.__call__, types.CellType.__new__, type.__call__,
)  # fmt: skip
"""Functions that do the same whatever the items are."""


def asks_how_many(fn: Any, values: Sequence[Any]) -> bool:
    """True if a function asks whether there is anything in a container of Python's own."""
    return fn is bool and _is_one_of(type(values[0]) if values else None, (list, tuple, dict))


def is_about_kinds(fn: Any) -> bool:
    """True if a function returns the same for all integers."""
    return _is_one_of(fn, (type, isinstance, issubclass))


def is_keyed(fn: Any) -> bool:
    """True if a function looks at its first argument after the container, and at nothing else."""
    owner, name = getattr(fn, "__objclass__", None), getattr(fn, "__name__", "")
    return (
        name in _KEYED
        and _is_one_of(owner, _CONTAINERS)
        and not (name == "__contains__" and _is_one_of(owner, (list, tuple)))
    )


def is_setting(fn: Any) -> bool:
    """True if a function sets or deletes an attribute of its first argument."""
    return _is_one_of(fn, (setattr, object.__setattr__, delattr, object.__delattr__))


def is_comparing(fn: Any) -> bool:
    """True if a function compares whole numbers, each of which tells of it."""
    of_sequences = _is_one_of(getattr(fn, "__objclass__", None), (list, tuple)) and fn.__name__ in _COMPARING
    return of_sequences or fn is min or fn is max


def moves(fn: Any, *, is_internal: bool) -> bool:
    """True if a function that is not interpreted only moves what it is given.

    Args:
        fn: the function.
        is_internal: whether Thunder's own code calls it. What a model has ``map`` call, no caller would
            interpret, and what it sets may last; Thunder's own code sets attributes of its iterators.
    """
    if _is_one_of(fn, _MOVING_FUNCTIONS):
        return True
    name = getattr(fn, "__name__", "")
    owner = getattr(fn, "__objclass__", None) or getattr(fn, "__self__", None)
    if name == "__get__":
        return _is_one_of(owner, _FUNCTIONS)
    if _is_one_of(owner, (map, filter)) or _is_one_of(fn, (setattr, object.__setattr__)):
        return is_internal
    if _is_one_of(owner, _CONTAINERS):
        return name in _MOVING
    if isinstance(owner, type) and issubclass(owner, BaseException):
        return name in ("__init__", "__new__")
    if name in ("__next__", "__iter__"):
        module = owner.__module__ if isinstance(owner, type) else getattr(fn, "__module__", "")
        return module in ("builtins", "thunder.core.interpreter")
    return getattr(fn, "__module__", "") == "optree._C" and name == "flatten"


def _is_one_of(value: Any, known: tuple[Any, ...]) -> bool:
    """True if a value is one of these, without asking it."""
    return any(value is each for each in known)


def is_transparent(value: Any) -> bool:
    """True if a leaf holds no size that is not seen, and no code that would be given one.

    So it is for constants, classes, modules and what Thunder has for tensors; not for iterators, functions and objects.
    """
    kind = type(value)
    if isinstance(value, types.BuiltinFunctionType):
        return value.__self__ is None or isinstance(value.__self__, types.ModuleType | type)
    if isinstance(value, _CONSTANTS):
        return True
    root = kind.__module__.partition(".")[0]
    return root in ("torch", "thunder") and kind.__module__ != "thunder.core.interpreter"


_MODULE = "thunder.core.proxies"
_PLACE = "TensorProxy.__getattr__.<locals>._Numel"
_UNSET = ("__defaults__", "__doc__", "__kwdefaults__")
_EMPTY = ("__annotations__", "__dict__", "__type_params__")

_bases_of: Any = type.__dict__["__bases__"].__get__
_namespace_of: Any = type.__dict__["__dict__"].__get__


def _make() -> Any:
    """Returns a class that is written as Thunder's, also in a function. It is only compared."""

    class _Numel(int):
        def __new__(cls, value):  # type: ignore[no-untyped-def]
            assert isinstance(value, int), f"Expected int, got {type(value)}"
            return int.__new__(cls, value)

        def __call__(self):  # type: ignore[no-untyped-def]
            return int(self)

    return _Numel


_KNOWN = _make()


def is_numel_class(cls: type) -> bool:
    """True if a class is Thunder's for the number of a tensor's elements."""
    if type(cls) is not type or (cls.__module__, cls.__name__, cls.__qualname__) != (_MODULE, "_Numel", _PLACE):
        return False
    own, known = _namespace_of(cls), _namespace_of(_KNOWN)
    return (
        _bases_of(cls) == (int,)
        and own.keys() == known.keys()
        and own["__doc__"] is None
        and type(own["__dict__"]) is GetSetDescriptorType
        and own["__dict__"].__objclass__ is cls
        and type(own["__new__"]) is staticmethod
        and _is_like(own["__new__"].__func__, _KNOWN.__new__)
        and _is_like(own["__call__"], _KNOWN.__call__)
    )


def is_numel(value: Any) -> bool:
    """True if a value is what Thunder has for the number of a tensor's elements."""
    return is_numel_class(type(value))


def _is_like(function: Any, known: Any) -> bool:
    """True if a function is one of Thunder's class that does the same as one of ours."""
    return (
        type(function) is FunctionType
        and function.__globals__ is vars(sys.modules[_MODULE])
        and function.__builtins__ is vars(builtins)  # type: ignore[attr-defined]
        and function.__name__ == known.__name__
        and function.__qualname__ == f"{_PLACE}.{known.__name__}"
        and function.__module__ == _MODULE
        and all(getattr(function, name) is None for name in _UNSET)
        and not any(getattr(function, name) for name in _EMPTY)
        and _is_same_code(function.__code__, known.__code__)
    )


def _is_same_code(code: CodeType, known: CodeType) -> bool:
    """True if two codes differ in nothing but the places where they are written."""
    return known == code.replace(co_firstlineno=known.co_firstlineno, co_linetable=known.co_linetable)
