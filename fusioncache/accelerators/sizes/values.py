"""Finds the values that have sizes, and the functions that only move values, such as methods of containers.

Tensors have shapes, and an integer may be a length itself: Dynamo passes a length as an integer beside the tensors that
have it. Uses of such an integer are recorded like those of other sizes. 0 and 1 are not lengths: programs differ too
much there. A batch is often a dictionary of tensors, and a decoder's cache a list of pairs. The tensors in such
containers have sizes as well, unless the text of another item might look like a tensor's sizes.

The class of ``x.numel`` is a callable integer, because torch has a method where Thunder first had a property. Thunder
creates this class anew at each attribute lookup on a tensor. A class is recognized as it if it has the same attributes,
and its functions have Thunder's code and globals: then it behaves like Thunder's.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from types import CodeType, FunctionType, GetSetDescriptorType
from typing import Any

from fusioncache.ir.errors import Declined, Scope

type Place = int | str | tuple[int | str, ...]
"""The path of an argument: its position or name; for an item of a container, a tuple of that and the keys to it."""

type ArgumentSizes = Mapping[Place, tuple[int, ...]]
"""The sizes of each argument that has some, by place: the shape of a tensor, or a single integer."""

_DEEPEST = 8
"""The largest nesting depth of containers."""


def find_tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[Place, Any]:
    """Returns the tensors among the arguments of a call, and in lists, tuples and dictionaries among them.

    Tensor subclasses are left out. If any tensor occurs twice, all tensors in containers are left out.
    """
    import torch

    places = _list_places(args, kwargs)
    tensors: dict[Place, Any] = {place: value for place, value in places if type(value) is torch.Tensor}
    inside = chain.from_iterable(_find_inside(place, value)[0] for place, value in places)
    found = {**tensors, **dict(inside)}
    return found if len(set(map(id, found.values()))) == len(found) else tensors


def find_integers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[Place, int]:
    """Returns the arguments of a call that are integers above 1. Items of containers and subclasses are left out."""
    return {place: value for place, value in _list_places(args, kwargs) if type(value) is int and value > 1}


def find_sizes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> ArgumentSizes:
    """Returns the sizes of the arguments of a call."""
    shapes = {place: tuple(each.shape) for place, each in find_tensors(args, kwargs).items()}
    return {**shapes, **{place: (each,) for place, each in find_integers(args, kwargs).items()}}


def explain_fixed(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Returns which argument has sizes that are not treated as lengths, and why, or None."""
    for place, value in _list_places(args, kwargs):
        reason = _explain(place, value)
        if reason is not None:
            return f"{name_argument(place)} {reason}: its sizes are no lengths"
    return None


def _explain(place: int | str, value: Any) -> str | None:
    """Returns why the sizes of an argument are not treated as lengths; None if they are, or there are none."""
    import torch

    if type(value) is not torch.Tensor and issubclass(type(value), torch.Tensor):
        return f"is of type {type(value).__name__}"
    inside, reason = _find_inside(place, value)
    is_twice = len({id(each) for _, each in inside}) < len(inside)
    return "holds a tensor twice" if is_twice else reason


def name_argument(place: Place) -> str:
    """Returns the name of an argument in messages."""
    if isinstance(place, tuple):
        first, *keys = place
        return name_argument(first) + "".join(f"[{key!r}]" for key in keys)
    return f"args[{place}]" if isinstance(place, int) else place


def _list_places(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[tuple[int | str, Any]]:
    return (*enumerate(args), *kwargs.items())


def _find_inside(place: int | str, value: Any) -> tuple[Sequence[tuple[Place, Any]], str | None]:
    """Returns the tensors in a container, or none and the reason if the text of another item might look like sizes."""
    if type(value) not in (dict, list, tuple):
        return (), None
    try:
        return list(_open((place,), value)), None
    except ValueError as reason:
        return (), str(reason)


def _open(way: tuple[int | str, ...], value: Any) -> Iterator[tuple[Place, Any]]:
    """Yields the tensors in a container with their places.

    Raises:
        ValueError: if the text of another item might look like their sizes.
    """
    import torch

    if type(value) is torch.Tensor:
        yield way, value
    elif type(value) in (dict, list, tuple) and len(way) <= _DEEPEST:
        # A copy, as another thread may change the container.
        for key, each in tuple(value.items() if type(value) is dict else enumerate(value)):
            if not (_is_plain_text(key) or (type(key) is int and key >= 0)):
                raise ValueError("has a key that is no plain text")
            yield from _open((*way, key), each)
    elif not (_is_plain_text(value) or value is None or type(value) in (bool, int, float)):
        name = type(value).__name__
        raise ValueError("holds a text with a parenthesis" if name == "str" else f"holds an object of type {name}")


def _is_plain_text(value: Any) -> bool:
    """True if a value is a string that cannot look like a tensor's sizes: it has no parenthesis."""
    return type(value) is str and "(" not in value


_MOST_ITEMS = 10_000


def exchange(value: Any, new: Callable[[Any], Any], *, anew: bool = False) -> Any:
    """Returns the same structure with other leaves; the same object if no leaf differs.

    Args:
        value: a leaf or a container.
        new: returns the replacement of a leaf.
        anew: whether lists and dicts are always copied, as other code may change them.

    Raises:
        Declined: if an item changed in a container whose type is not supported.
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
    """Returns a tuple or list of the same type with these items.

    Raises:
        Declined: if no object of this type can be made of them.
    """
    import torch

    kind: Any = type(value)
    if kind in (tuple, list) or (kind is torch.Size and all(isinstance(each, int) for each in items)):
        return kind(items)
    if isinstance(value, tuple) and hasattr(kind, "_fields"):  # a named tuple; its own methods are not called
        return tuple.__new__(kind, items)
    raise Declined(kind.__name__, Scope.STRUCTURE)


def find_leaves(value: Any) -> Iterator[Any]:
    """Yields the leaves of nested containers, including keys and members of sets. Any other value is a leaf.

    Raises:
        Declined: if there are too many items.
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
"""Methods of containers whose effect does not depend on the items."""
_KEYED = frozenset({"__getitem__", "__setitem__", "get", "setdefault", "pop", "__contains__"})
"""Methods of containers that look at their first argument only."""
_COMPARING = frozenset({"__eq__", "__ne__"})
"""Methods of containers that call comparisons of the items. If all items are integers, these report guards."""
_FUNCTIONS = (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)
"""Types of functions that are bound to an object without calling its methods."""
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
"""Types of values that contain no sizes."""


_MOVING_FUNCTIONS = (
    getattr, hasattr, iter, next, len, callable, any, all, enumerate, zip,
    functools.partial.__call__, types.CellType.__new__, type.__call__,
)  # fmt: skip
"""Functions whose effect does not depend on the items."""


def tests_emptiness(fn: Any, values: Sequence[Any]) -> bool:
    """True if a call tests whether a built-in container is empty."""
    return fn is bool and _is_one_of(type(values[0]) if values else None, (list, tuple, dict))


def reads_types_only(fn: Any) -> bool:
    """True if a function returns the same for all integers."""
    return _is_one_of(fn, (type, isinstance, issubclass))


def reads_key_only(fn: Any) -> bool:
    """True if a function looks at its first argument after the container, and at nothing else."""
    owner, name = getattr(fn, "__objclass__", None), getattr(fn, "__name__", "")
    return (
        name in _KEYED
        and _is_one_of(owner, _CONTAINERS)
        and not (name == "__contains__" and _is_one_of(owner, (list, tuple)))
    )


def sets_attribute(fn: Any) -> bool:
    """True if a function sets or deletes an attribute of its first argument."""
    return _is_one_of(fn, (setattr, object.__setattr__, delattr, object.__delattr__))


def compares_items(fn: Any) -> bool:
    """True if a function calls the comparisons of its items, which report guards if these are integers."""
    of_sequences = _is_one_of(getattr(fn, "__objclass__", None), (list, tuple)) and fn.__name__ in _COMPARING
    return of_sequences or fn is min or fn is max


def only_moves(fn: Any, *, is_internal: bool) -> bool:
    """True if a function that is not interpreted only moves its arguments.

    Args:
        fn: the function.
        is_internal: whether Thunder's code calls it. ``map`` and ``filter`` of a model call functions that are not
            interpreted, and attributes that a model sets may last. Thunder's code sets attributes of its iterators.
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
    """True if a value is one of these objects. Does not call its ``__eq__``."""
    return any(value is each for each in known)


def is_transparent(value: Any) -> bool:
    """True if a leaf holds no hidden size, and no code that would receive one.

    This holds for constants, classes, modules, and objects of torch and Thunder such as proxies. It does not hold for
    iterators, functions and other objects.
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

_bases_of: Any = type.__dict__["__bases__"].__get__
_namespace_of: Any = type.__dict__["__dict__"].__get__


_NAMES = frozenset({"__module__", "__doc__", "__dict__", "__new__", "__call__"})
_SINCE_3_13 = frozenset({"__firstlineno__", "__static_attributes__"})


@lru_cache(maxsize=1)
def _find_codes() -> Mapping[str, CodeType]:
    """Returns the code of the methods of Thunder's class, by name. The function that defines it holds them."""
    from fusioncache.thunder_adapter.api import TensorProxy

    constants = TensorProxy.__getattr__.__code__.co_consts
    (body,) = (each for each in constants if isinstance(each, CodeType) and each.co_name == "_Numel")
    return {each.co_name: each for each in body.co_consts if isinstance(each, CodeType)}


def is_numel_class(cls: type) -> bool:
    """True if a class is Thunder's class of ``x.numel``, the number of a tensor's elements."""
    if type(cls) is not type or (cls.__module__, cls.__name__, cls.__qualname__) != (_MODULE, "_Numel", _PLACE):
        return False
    own = _namespace_of(cls)
    return (
        _bases_of(cls) == (int,)
        and own.keys() - _SINCE_3_13 == _NAMES
        and own["__doc__"] is None
        and type(own["__dict__"]) is GetSetDescriptorType
        and own["__dict__"].__objclass__ is cls
        and type(own["__new__"]) is staticmethod
        and _is_method(own["__new__"].__func__, "__new__")
        and _is_method(own["__call__"], "__call__")
    )


def is_numel(value: Any) -> bool:
    """True if a value is Thunder's callable integer for the number of a tensor's elements."""
    return is_numel_class(type(value))


def _is_method(function: Any, name: str) -> bool:
    """True if a function does what the method of this name of Thunder's class does."""
    return (
        type(function) is FunctionType
        and function.__code__ is _find_codes()[name]
        and function.__globals__ is vars(sys.modules[_MODULE])
        and function.__builtins__ is vars(builtins)  # type: ignore[attr-defined]
        and (function.__module__, function.__name__, function.__qualname__) == (_MODULE, name, f"{_PLACE}.{name}")
        and not (function.__defaults__ or function.__kwdefaults__ or function.__dict__)
    )
