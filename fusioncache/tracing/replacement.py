"""A shortcut and what it replaces, which it does only in the source that it was written for."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import repeat
from operator import is_
from types import ModuleType
from typing import Any

_PACKAGES = ("thunder", "fusioncache")


@dataclass(frozen=True, slots=True)
class Replacement:
    """A shortcut, and what it replaces in Thunder.

    Attributes:
        holder: the dict, or the object, that holds the original as an item or as an attribute.
        key: the key of the item, or the name of the attribute.
        source: the first 16 digits of the SHA-256 of the source that the shortcut was written for; None if any will do.
        make: makes the shortcut from the original.
        everywhere: whether it stands in also in each module of Thunder's or ours that imported the original by name.
        around: whether it may stand around another shortcut, and calls that in place of the original.
    """

    holder: Any
    key: Any
    source: str | None
    make: Callable[[Any], Any]
    everywhere: bool = False
    around: bool = False

    def get(self) -> Any:
        """Returns what the holder has there now, of a class what stands in its body; None if it has nothing."""
        if isinstance(self.holder, dict):
            return self.holder.get(self.key)
        if isinstance(self.holder, type):
            return vars(self.holder).get(self.key)
        return getattr(self.holder, self.key, None)

    def swap(self, old: Any, new: Any) -> None:
        """Puts something into every place of what is there now, or nothing. What became of the other places stays."""
        if self.get() is old:
            if isinstance(self.holder, dict) and new is None:
                self.holder.pop(self.key, None)
            elif isinstance(self.holder, dict):
                self.holder[self.key] = new
            else:
                setattr(self.holder, self.key, new)
        if self.everywhere:
            exchange_everywhere(old, new)

    def fits(self) -> bool:
        """Tells whether the holder has what the shortcut was written for."""
        return self.source is None or is_known(self.get(), self.source)


def exchange_everywhere(old: Any, new: Any) -> None:
    """Puts something into the place of another in each module of Thunder's or ours that has that, by whichever name."""
    for names in _namespaces():
        # Most modules do not have it, which is found out without looking at each name.
        if any(map(is_, list(names.values()), repeat(old))):
            for name in [name for name, value in list(names.items()) if value is old]:
                names[name] = new


def _namespaces() -> Iterator[dict[str, Any]]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _PACKAGES and isinstance(module, ModuleType):
            yield vars(module)


def is_known(function: Any, source: str) -> bool:
    """Tells whether a function has the source of which these are the first digits of the SHA-256."""
    try:
        return digest_source(function) == source
    except Exception:  # there is nothing, or no function, or it has no source, or its file has changed
        return False


def digest_source(function: Any) -> str:
    """Returns the first digits of the SHA-256 of a function's source, and of what it wraps: it is not the wrapped one.

    Raises:
        OSError: if there is no source.
        TypeError: if it is neither a function written in Python, nor a method or a property made of one.
    """
    digest = hashlib.sha256()
    layer = _function_of(function)
    if isinstance(layer, partial):
        digest.update(repr((layer.args, layer.keywords)).encode())
        layer = layer.func
    while layer is not None:
        # Of the code: asked for the source of a wrapper, Python returns that of what it wraps.
        digest.update(inspect.getsource(getattr(layer, "__code__", layer)).encode())
        layer = vars(layer).get("__wrapped__")
    return digest.hexdigest()[:16]


def _function_of(value: Any) -> Any:
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    if isinstance(value, property):
        return value.fget
    return value.func if isinstance(value, cached_property) else value
