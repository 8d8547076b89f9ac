"""What people call a function, and whose code it is."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from fusioncache.accelerators.programs import lookup, native
from fusioncache.accelerators.sizes.numel import is_numel_class

_OWN = ("thunder", "fusioncache")


def name_of(fn: Any) -> str:
    """Returns what people call a function or a class."""
    owner = getattr(fn, "__self__", None)
    module = getattr(fn, "__module__", None) or (owner.__name__ if isinstance(owner, types.ModuleType) else "")
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return name if module in ("", "builtins") else f"{module}.{name}"


def is_internal(namespace: Mapping[str, Any]) -> bool:
    """Tells whether these are the globals of a module of Thunder's or of this package."""
    return (lookup.find_module_name(namespace) or "").partition(".")[0] in _OWN


def find_actor() -> Any:
    """Returns the frame whose code is interpreted, or for which something is interpreted; None if there is none.

    The interpreter has small functions of its own interpreted in place of what it looks at: those act for others.
    """
    return next(iterate_actors(), None)


def iterate_actors() -> Iterator[Any]:
    """Returns the frame whose code is interpreted, the one that called it, and so on, but for the interpreter's own."""
    from fusioncache.thunder_adapter.accelerator_api import get_interpreterruntimectx

    helpers = _helpers()
    frames = reversed(get_interpreterruntimectx().frame_stack)
    return (frame for frame in frames if id(frame.globals.value) not in helpers)


@lru_cache(maxsize=1)
def _helpers() -> frozenset[int]:
    """Returns the globals, by identity, of the modules that have functions interpreted in place of something."""
    from fusioncache.thunder_adapter.accelerator_api import interpreter, jit_ext

    return frozenset((id(vars(interpreter)), id(vars(jit_ext))))


def is_canonical(function: Any) -> bool:
    """Tells whether a function is what is found under its name, so that one with the same description is the same one.

    Another function with this name, this code and these defaults may exist, but not without somebody making one.
    """
    return isinstance(function, types.FunctionType | types.BuiltinFunctionType) and _is_under_its_name(function)


def _is_under_its_name(definition: Any) -> bool:
    try:
        return lookup.find_qualified(definition.__module__, definition.__qualname__) is definition
    except LookupError:
        return False


def is_thunders_class(cls: type) -> bool:
    """Tells whether a class is one of Thunder's or of this package, which the versions in the key say all of."""
    try:
        return is_internal(lookup.find_module(cls.__module__)) and (_is_under_its_name(cls) or is_numel_class(cls))
    except LookupError:
        return False


def is_internal_call(fn: Any, name: str, args: tuple[Any, ...]) -> bool:
    """Tells whether it is Thunder's own code, where it is interpreted, that asks this of types and tensors."""
    if name not in ("all", "__next__", "__new__", "__iter__", "__contains__", "flatten"):
        return False
    actor = find_actor()
    if actor is None:
        return False
    names = actor.globals.value
    if not is_internal(names) and lookup.find_module_name(names) != "optree.ops":
        return False
    if name == "flatten":
        return all(native.is_plain(each.value) or native.is_class(each.value) for each in args)
    owner = fn.__self__ if name == "__new__" else getattr(fn, "__objclass__", None)
    return fn is all or owner in (filter, map, set, frozenset)
