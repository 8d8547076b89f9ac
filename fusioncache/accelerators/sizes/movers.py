"""Functions that move values about without looking at them, and those that see only what kind of a value one is."""

from __future__ import annotations

import collections
import enum
import functools
import types
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

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


@lru_cache(maxsize=1)
def _moving() -> frozenset[int]:
    functions: list[Any] = [
        getattr, hasattr, iter, next, len, callable, any, all, enumerate, zip,
        functools.partial.__call__, types.CellType.__new__, type.__call__,
    ]  # fmt: skip
    return frozenset(map(id, functions))


@lru_cache(maxsize=1)
def _asking_for_kinds() -> frozenset[int]:
    return frozenset(map(id, (type, isinstance, issubclass)))


def asks_how_many(fn: Any, values: Sequence[Any]) -> bool:
    """Tells whether a function asks whether there is anything in a container of Python's own."""
    return fn is bool and _is_one_of(type(values[0]) if values else None, (list, tuple, dict))


def is_about_kinds(fn: Any) -> bool:
    """Tells whether a function returns the same for all integers."""
    return id(fn) in _asking_for_kinds()


def is_keyed(fn: Any) -> bool:
    """Tells whether a function looks at its first argument after the container, and at nothing else."""
    owner, name = getattr(fn, "__objclass__", None), getattr(fn, "__name__", "")
    return (
        name in _KEYED
        and _is_one_of(owner, _CONTAINERS)
        and not (name == "__contains__" and _is_one_of(owner, (list, tuple)))
    )


def is_setting(fn: Any) -> bool:
    """Tells whether a function sets or deletes an attribute of its first argument."""
    return _is_one_of(fn, (setattr, object.__setattr__, delattr, object.__delattr__))


def is_comparing(fn: Any) -> bool:
    """Tells whether a function compares whole numbers, each of which tells of it."""
    of_sequences = _is_one_of(getattr(fn, "__objclass__", None), (list, tuple)) and fn.__name__ in _COMPARING
    return of_sequences or fn is min or fn is max


def moves(fn: Any, *, is_internal: bool) -> bool:
    """Tells whether a function that nobody interprets only moves what it is given.

    Args:
        fn: the function.
        is_internal: whether Thunder's own code calls it. What a model has ``map`` call, nobody would
            interpret, and what it sets may last; Thunder's own code sets attributes of its iterators.
    """
    if id(fn) in _moving():
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
    """Tells whether a value is one of these, without asking it."""
    return any(value is each for each in known)


def is_transparent(value: Any) -> bool:
    """Tells whether a leaf holds no size that is not seen, and no code that would be given one.

    So it is for constants, classes, modules and what Thunder has for tensors; not for iterators, functions and objects.
    """
    kind = type(value)
    if isinstance(value, types.BuiltinFunctionType):
        return value.__self__ is None or isinstance(value.__self__, types.ModuleType | type)
    if isinstance(value, _CONSTANTS):
        return True
    root = kind.__module__.partition(".")[0]
    return root in ("torch", "thunder") and kind.__module__ != "thunder.core.interpreter"
