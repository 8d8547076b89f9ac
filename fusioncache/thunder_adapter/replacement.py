"""A replacement of a function of Thunder, and the digests of sources."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from types import ModuleType
from typing import Any

_PACKAGES = ("thunder", "fusioncache")


@dataclass(frozen=True, slots=True)
class Replacement:
    """A shortcut, and what it replaces in Thunder.

    Attributes:
        holder: the dict, or the object, that holds the original as an item or as an attribute.
        key: the key of the item, or the name of the attribute.
        make: makes the shortcut from the original.
        everywhere: whether it stands in also in each module of Thunder's or ours that imported the original by name.
        around: whether it may stand around another shortcut, and calls that in place of the original.
    """

    holder: Any
    key: Any
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

    def swap(self, old: Any, new: Any, importers: Importers | None = None) -> None:
        """Puts something into every place of what is there now, or nothing. What became of the other places stays.

        Args:
            old: what is there now.
            new: what to put there.
            importers: the modules, if they were looked through already.
        """
        if self.get() is old:
            if isinstance(self.holder, dict) and new is None:
                self.holder.pop(self.key, None)
            elif isinstance(self.holder, dict):
                self.holder[self.key] = new
            else:
                setattr(self.holder, self.key, new)
            if importers is not None and isinstance(self.holder, ModuleType):
                importers.note(vars(self.holder), new)
        if self.everywhere:
            (importers or Importers()).exchange(old, new)


class Importers:
    """The modules of Thunder's and ours, by what they have under some name: looked through once for many exchanges.

    Args:
        wanted: the objects that will be exchanged; None if they are not known yet, which takes longer.
    """

    __slots__ = ("_by_value", "_count", "_seen", "_wanted")

    def __init__(self, wanted: Iterable[Any] | None = None) -> None:
        self._wanted = None if wanted is None else set(map(id, wanted))
        self._by_value = defaultdict[int, list[dict[str, Any]]](list)
        self._seen, self._count = set[str](), 0
        self._look()

    def exchange(self, old: Any, new: Any) -> None:
        """Puts something into the place of another in each module that has that, by whichever name."""
        if self._count != len(sys.modules):  # one was imported meanwhile
            self._look()
        # What a module had is looked at again: it may have something else by now.
        for names in tuple(self._by_value.get(id(old), ())):
            for name in [name for name, value in list(names.items()) if value is old]:
                names[name] = new
                self.note(names, new)

    def note(self, names: dict[str, Any], new: Any) -> None:
        """Takes note that a module has something now."""
        self._by_value[id(new)].append(names)
        if self._wanted is not None:
            self._wanted.add(id(new))

    def _look(self) -> None:
        """Looks through the modules that were not looked through before."""
        self._count = len(sys.modules)
        for name, names in _list_namespaces():
            if name not in self._seen:
                self._seen.add(name)
                found = map(id, list(names.values()))
                for identity in found if self._wanted is None else self._wanted.intersection(found):
                    self._by_value[identity].append(names)


def exchange_everywhere(old: Any, new: Any) -> None:
    """Puts something into the place of another in each module of Thunder's or ours that has that, by whichever name."""
    Importers().exchange(old, new)


def _list_namespaces() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _PACKAGES and isinstance(module, ModuleType):
            yield name, vars(module)


def is_known(function: Any, digests: Collection[str]) -> bool:
    """True if the digest of a function's source is one of these."""
    try:
        return digest_source(function) in digests
    except Exception:  # there is nothing, or no function, or it has no source, or its file has changed
        return False


def digest_source(function: Any) -> str:
    """Returns 16 digits of the SHA-256 of ``read_source``.

    Raises:
        OSError, TypeError: as ``read_source`` does.
    """
    return hashlib.sha256(read_source(function).encode()).hexdigest()[:16]


def read_source(function: Any) -> str:
    """Returns the source of a function. That of a wrapper is followed by that of what it wraps.

    Raises:
        OSError: if there is no source.
        TypeError: if it is neither a function written in Python, nor a method or a property made of one.
    """
    parts = []
    layer = _function_of(function)
    if isinstance(layer, partial):
        parts.append(repr((layer.args, layer.keywords)))
        layer = layer.func
    while layer is not None:
        # Of the code: asked for the source of a wrapper, Python returns that of what it wraps.
        parts.append(inspect.getsource(getattr(layer, "__code__", layer)))
        layer = vars(layer).get("__wrapped__")
    return "".join(parts)


def _function_of(value: Any) -> Any:
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    if isinstance(value, property):
        return value.fget
    return value.func if isinstance(value, cached_property) else value
