"""What people call a function, and whose code it is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from fusioncache.program import lookup, native


def name_of(fn: Any) -> str:
    """Returns what people call a function or a class."""
    owner = getattr(fn, "__self__", None)
    module = getattr(fn, "__module__", None) or (getattr(owner, "__name__", "") if owner is not None else "")
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return name if module in ("", "builtins") else f"{module}.{name}"


def is_internal(namespace: Mapping[str, Any]) -> bool:
    """Tells whether these are the globals of a module of Thunder's or of this package."""
    return name_of_module(namespace).partition(".")[0] in ("thunder", "fusioncache")


def name_of_module(namespace: Mapping[str, Any]) -> str:
    """Returns the name of the module whose globals these are; nothing if they are no module's."""
    name = namespace.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return str(name) if module is not None and vars(module) is namespace else ""


def is_thunders_class(cls: type) -> bool:
    """Tells whether a class is one of Thunder's or of this package, which the versions in the key say all of."""
    try:
        names = lookup.find_module(cls.__module__)
        return is_internal(names) and lookup.find_qualified(cls.__module__, cls.__qualname__) is cls
    except LookupError:
        return False


def is_internal_call(fn: Any, name: str, args: tuple[Any, ...]) -> bool:
    """Tells whether it is Thunder's own code, where it is interpreted, that asks this of types and tensors."""
    from thunder.core.interpreter import get_interpreterruntimectx

    if name not in ("all", "__next__", "__new__", "__contains__", "flatten"):
        return False
    frame = get_interpreterruntimectx().peek_frame_stack()
    if frame is None or not (is_internal(frame.globals.value) or name_of_module(frame.globals.value) == "optree.ops"):
        return False
    if name == "flatten":
        return all(native.is_plain(each.value) or native.is_class(each.value) for each in args)
    owner = fn.__self__ if name == "__new__" else getattr(fn, "__objclass__", None)
    return fn is all or owner in (filter, map, set, frozenset)
