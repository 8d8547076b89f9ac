"""The table of what fusioncache replaces in Thunder, or relies on: ``patches.txt``, read into rows.

A row becomes a ``Replacement``, which knows every place where the original stands. Sources are known by their digests.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

_PACKAGES = ("thunder", "fusioncache")
_SECTION = re.compile(r"\[(?P<name>[^]]+)\](?: +(?P<module>[/\w.]+))?(?P<whole> +whole)?(?: +needs +(?P<needs>\w+))?")
_PLACE = re.compile(r"(?P<module>[\w.]+):(?P<path>[\w.]+)(?:\[(?P<item>[\w.]+)\])?")
_MAKER = re.compile(r"(?P<name>\w+)(?:\((?P<argument>\w+)\))?")


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


def _list_namespaces() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _PACKAGES and isinstance(module, ModuleType):
            yield name, vars(module)


@dataclass(frozen=True, slots=True)
class Patch:
    """A row: a function of Thunder, and perhaps its replacement.

    Attributes:
        capability: the rows that work together.
        original: ``module:path``, or ``module:path[key]`` of a dict.
        digests: of the accepted sources, as ``digest_source`` returns them; empty if all sources are accepted.
        maker: ``module:function`` that makes the replacement from the original; empty if the others rely on this row.
        argument: of ``maker``, which then returns the function that makes the replacement; empty if it has none.
        everywhere: see ``Replacement``.
        around: see ``Replacement``.
        loaded: whether the module is left alone unless other code imported it.
    """

    capability: str
    original: str
    digests: tuple[str, ...]
    maker: str
    argument: str
    everywhere: bool
    around: bool
    loaded: bool = False

    def locate(self) -> tuple[Any, Any]:
        """Returns what holds the original: a module, a class or a dict; and its name or key there.

        Raises:
            LookupError: if this Thunder has no such thing.
        """
        place = _PLACE.fullmatch(self.original)
        assert place, self.original
        try:
            holder: Any = importlib.import_module(place["module"])
            *path, name = place["path"].split(".")
            for part in path:
                holder = getattr(holder, part)
            if place["item"]:
                holder = getattr(holder, name)
                name = _find_key(holder, place["item"], importlib.import_module(place["module"]))
            if Replacement(holder, name, type).get() is None:
                raise AttributeError(name)
        except (ImportError, AttributeError, KeyError) as error:
            raise LookupError(f"Thunder has no {self.original}") from error
        return holder, name

    @property
    def is_idle(self) -> bool:
        """True if the row waits for a module that no code has imported."""
        return self.loaded and self.original.partition(":")[0] not in sys.modules

    def make_replacement(self) -> Replacement:
        """Returns the replacement, which is not installed.

        Raises:
            LookupError: if this Thunder has no such original.
        """
        module, _, name = self.maker.partition(":")
        make = getattr(importlib.import_module(module), name)
        make = make(self.argument) if self.argument else make
        return Replacement(*self.locate(), make, everywhere=self.everywhere, around=self.around)


@dataclass(frozen=True, slots=True)
class PatchGroup:
    """The rows of a capability.

    Attributes:
        name: of the capability.
        whole: whether no row works without the others.
        needs: another capability, whose rows are installed as well; empty if there is none.
        rows: in the order in which they are installed.
    """

    name: str
    whole: bool
    needs: str
    rows: tuple[Patch, ...]


@cache
def list_patches() -> Mapping[str, PatchGroup]:
    """Returns all rows by their capability."""
    return MappingProxyType({group.name: group for group in read_table(Path(__file__).with_suffix(".txt").read_text())})


def read_table(text: str) -> Iterator[PatchGroup]:
    """Yields the rows in a text by their capability. The text has the format that ``patches.txt`` explains."""
    for section in re.split(r"^(?=\[)", text, flags=re.MULTILINE)[1:]:
        head, *lines = section.splitlines()
        match = _SECTION.fullmatch(head)
        assert match, head
        module = match["module"] or ""
        folder = "fusioncache" if module.startswith("/") else "fusioncache.thunder_adapter"
        module = f"{folder}.{module.lstrip('/')}"
        rows = tuple(_read_row(match["name"], module, line) for line in lines if line and not line.startswith("#"))
        yield PatchGroup(match["name"], match["whole"] is not None, match["needs"] or "", rows)


def _read_row(capability: str, module: str, line: str) -> Patch:
    original, *words = line.split()
    flags = {word for word in words if word in ("everywhere", "around", "loaded")}
    *digests, replacement = (word for word in words if word not in flags)
    maker = _MAKER.fullmatch(replacement)
    return Patch(
        capability,
        original,
        () if digests == ["any"] else tuple(digests),
        f"{module}:{maker['name']}" if maker else "",
        (maker["argument"] or "") if maker else "",
        "everywhere" in flags,
        "around" in flags,
        "loaded" in flags,
    )


def _find_key(holder: Any, text: str, module: ModuleType) -> Any:
    """Returns the key of a dict: the text, or what it names in Python's builtins or in the interpreter.

    Raises:
        KeyError: if the dict has no such key.
    """
    if text in holder:
        return text
    first, *path = text.split(".")
    key = getattr(builtins, first, None) or getattr(module, first)
    for part in path:
        key = getattr(key, part)
    holder[key]
    return key


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
