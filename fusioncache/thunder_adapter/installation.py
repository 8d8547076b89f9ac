"""The table of Thunder's functions that fusioncache replaces or relies on, and the installer of the replacements.

A row of ``patches.txt`` becomes a ``Replacement``, which finds every place that holds the original. Sources are
identified by their digests. Most replacements are shortcuts in Thunder's tracing: they make the same traces in a
fraction of the time.

Thunder interprets the bytecode of a model, and looks up names through interpreted code of its own. For one layer of
litgpt's Llama this takes 11,000 frames, of which 10,000 only subscript a dict of globals or builtins.
Each replacement computes what the original computes. It is installed only where the original has the source that it
was written for. ``fusioncache doctor`` compares another source with that one.
``python -m fusioncache.thunder_adapter.installation`` adds the installed sources whose digests are in the table.
"""

from __future__ import annotations

import builtins
import difflib
import hashlib
import importlib
import inspect
import json
import linecache
import lzma
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any

from fusioncache.process import forks
from fusioncache.process.collector import without_collector
from fusioncache.process.warning import log_errors, logger

_PACKAGES = ("thunder", "fusioncache")
_SECTION = re.compile(r"\[(?P<name>[^]]+)\](?: +(?P<module>[\w.]+))?(?P<whole> +whole)?(?: +needs +(?P<needs>\w+))?")
_WITHOUT = "tracing does without the shortcuts of %s"
_PLACE = re.compile(r"(?P<module>[\w.]+):(?P<path>[\w.]+)(?:\[(?P<item>[\w.]+)\])?")


@dataclass(frozen=True, slots=True)
class Replacement:
    """A shortcut, and the function of Thunder that it replaces.

    Attributes:
        holder: the dict, or the object, that holds the original as an item or as an attribute.
        key: the key of the item, or the name of the attribute.
        make: makes the shortcut from the original.
        everywhere: whether it also replaces the original in each module of Thunder or fusioncache that imported it.
        around: whether it may wrap another shortcut, and call that in place of the original.
    """

    holder: Any
    key: Any
    make: Callable[[Any], Any]
    everywhere: bool = False
    around: bool = False

    def get(self) -> Any:
        """Returns the holder's current value, for a class only its own, or None."""
        if isinstance(self.holder, dict):
            return self.holder.get(self.key)
        if isinstance(self.holder, type):
            return vars(self.holder).get(self.key)
        return getattr(self.holder, self.key, None)

    def swap(self, old: Any, new: Any, importers: Importers | None = None) -> None:
        """Replaces the current value in every place that holds it. Places that hold another value by now stay.

        Args:
            old: the current value.
            new: its replacement; None removes an item of a dict.
            importers: the modules, if they were scanned already.
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
    """An index of the modules of Thunder and fusioncache by the values in them: one scan serves many exchanges."""

    __slots__ = ("_by_value", "_count", "_seen")

    def __init__(self) -> None:
        self._by_value = defaultdict[int, list[dict[str, Any]]](list)
        self._seen, self._count = set[str](), 0
        self._look()

    def exchange(self, old: Any, new: Any) -> None:
        """Replaces a value by another one in each module that contains it, under any name."""
        if self._count != len(sys.modules):  # one was imported meanwhile
            self._look()
        # The index may be out of date: a module may contain another value by now.
        for names in tuple(self._by_value.get(id(old), ())):
            for name in [name for name, value in list(names.items()) if value is old]:
                names[name] = new
                self.note(names, new)

    def note(self, names: dict[str, Any], new: Any) -> None:
        """Notes that a module contains a value now."""
        self._by_value[id(new)].append(names)

    def _look(self) -> None:
        """Scans the modules that were not scanned before."""
        self._count = len(sys.modules)
        for name, module in list(sys.modules.items()):
            is_ours = name.partition(".")[0] in _PACKAGES and isinstance(module, ModuleType)
            if is_ours and name not in self._seen:
                self._seen.add(name)
                for value in list(vars(module).values()):
                    self._by_value[id(value)].append(vars(module))


@dataclass(frozen=True, slots=True)
class Patch:
    """A row of the table: a function of Thunder, and perhaps its replacement.

    Attributes:
        original: ``module:path``, or ``module:path[key]`` of a dict.
        digests: the digests of accepted sources, by ``digest_source``; empty if all sources are accepted.
        maker: ``module:function`` that makes the replacement from the original; empty if other rows only rely on it.
        everywhere: see ``Replacement``.
        around: see ``Replacement``.
        loaded: whether the row is skipped unless other code imported the module.
    """

    original: str
    digests: tuple[str, ...]
    maker: str
    everywhere: bool
    around: bool
    loaded: bool = False

    def locate(self) -> tuple[Any, Any]:
        """Returns the module, class or dict that holds the original, and its name or key there.

        Raises:
            LookupError: if this Thunder has no such original.
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
        """Returns the replacement without installing it.

        Raises:
            LookupError: if this Thunder has no such original.
        """
        module, _, name = self.maker.partition(":")
        make = getattr(importlib.import_module(module), name)
        return Replacement(*self.locate(), make, everywhere=self.everywhere, around=self.around)


@dataclass(frozen=True, slots=True)
class PatchGroup:
    """The rows of a capability.

    Attributes:
        name: the name of the capability.
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
    """Returns the rows of each capability."""
    text = Path(__file__).with_name("patches.txt").read_text()
    return MappingProxyType({group.name: group for group in read_table(text)})


def read_table(text: str) -> Iterator[PatchGroup]:
    """Yields the rows of each capability in a text, in the format that ``patches.txt`` explains."""
    for section in re.split(r"^(?=\[)", text, flags=re.MULTILINE)[1:]:
        head, *lines = section.splitlines()
        match = _SECTION.fullmatch(head)
        assert match, head
        rows = tuple(_read_row(match["module"], line) for line in lines if line and not line.startswith("#"))
        yield PatchGroup(match["name"], match["whole"] is not None, match["needs"] or "", rows)


def _read_row(module: str | None, line: str) -> Patch:
    original, *words = line.split()
    flags = {word for word in words if word in ("everywhere", "around", "loaded")}
    *digests, maker = (word for word in words if word not in flags)
    return Patch(
        original,
        () if digests == ["any"] else tuple(digests),
        "" if maker == "-" else f"{module}:{maker}",
        "everywhere" in flags,
        "around" in flags,
        "loaded" in flags,
    )


def _find_key(holder: Any, text: str, module: ModuleType) -> Any:
    """Returns the key of a dict: the text, or the object that it names in the builtins or in the module.

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
    """True if the digest of a function's source is one of these digests."""
    try:
        return digest_source(function) in digests
    except Exception:  # there is no value or no function, it has no source, or its file has changed
        return False


def digest_source(function: Any) -> str:
    """Returns 16 digits of the SHA-256 of ``read_source``.

    Raises:
        OSError, TypeError: as ``read_source`` does.
    """
    return hashlib.sha256(read_source(function).encode()).hexdigest()[:16]


def read_source(function: Any) -> str:
    """Returns the source of a function; for a wrapper, followed by the source of the wrapped function.

    Raises:
        OSError: if there is no source.
        TypeError: if it is neither a function written in Python nor a cached property made of one.
    """
    parts = []
    layer = function.func if isinstance(function, cached_property) else function
    if isinstance(layer, partial):
        parts.append(repr((layer.args, layer.keywords)))
        layer = layer.func
    while layer is not None:
        # By code object: for a wrapper, ``inspect`` returns the source of the wrapped function.
        code = getattr(layer, "__code__", None)
        parts.append(_read_lines(code) if code else inspect.getsource(layer))
        layer = vars(layer).get("__wrapped__")
    return "".join(parts)


def _read_lines(code: CodeType) -> str:
    """Returns the source lines of a code object.

    To find the last line, ``inspect`` tokenizes the text from the first line on, which takes three times as long.

    Raises:
        OSError: if there are no lines.
    """
    last = _find_last_line(code)
    if not last:  # positions are disabled, as by ``-X no_debug_ranges``
        return inspect.getsource(code)
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : last]
    if not lines:
        raise OSError(f"{code.co_filename} has no line {code.co_firstlineno}")
    return "".join(lines)


def _find_last_line(code: CodeType) -> int:
    """Returns the last line of a code object and its nested code objects; 0 if they have no positions."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return max((*(end or 0 for _, end, _, _ in code.co_positions()), *map(_find_last_line, inner)), default=0)


_SOURCES = Path(__file__).with_name("sources.json.xz")
"""The sources that the rows of the table were written for."""

TRACING = (
    *("containers", "frames", "natives", "cells", "values", "constraints", "attributes", "conditions"),
    *("operators", "iteration", "leaps", "collector", "flattening", "signatures", "symbols", "mapping"),
    *("dead_code", "min_cut", "regions", "printing", "tensors"),
    # Last, because they wrap the shortcuts of others.
    *("hooks", "layers"),
)
"""The capabilities that make tracing faster, in the order in which they are installed. ``layers`` needs ``hooks``."""

_lock = forks.lock()
_installed: list[tuple[Replacement, Any, Any]] = []
"""The installed replacements of this process, each with the original function and the shortcut."""
accepted_capabilities: set[str] = set()
"""The capabilities of which all sources are accepted, because a probe showed that they behave as expected."""
_installed_groups: dict[str, tuple[Replacement, ...]] = {}
"""The capabilities that are installed, with their replacements. Without it a later call would read sources again."""


def list_installed() -> tuple[str, ...]:
    """Returns the names of the capabilities that are installed."""
    return tuple(_installed_groups)


def find_misfit(row: Patch) -> str | None:
    """Returns why a row of the table does not fit the installed Thunder; None if it fits."""
    if row.is_idle:
        return None
    try:
        own = find_original(row)
    except LookupError as error:
        return str(error)
    return None if not row.digests or is_known(own, row.digests) else f"{row.original} has another source"


def unwrap_replacements(value: Any) -> Any:
    """Returns the original function of Thunder behind installed replacements."""
    replaced = {id(new): own for _, own, new in _installed}
    while id(value) in replaced:
        value = replaced[id(value)]
    return value


def find_original(row: Patch) -> Any:
    """Returns the original function of Thunder that a row of the table names.

    Raises:
        LookupError: if this Thunder has no such function.
    """
    return unwrap_replacements(Replacement(*row.locate(), type).get())


def find_known(capability: str) -> dict[str, Any]:
    """Returns the original functions of a capability whose sources are known, by their names in the table."""
    rows = [row for row in list_patches()[capability].rows if not row.is_idle and find_misfit(row) is None]
    return {row.original: find_original(row) for row in rows}


@cache
def is_known_whole(capability: str) -> bool:
    """True if all functions of a capability have known sources."""
    return all(find_misfit(row) is None for row in list_patches()[capability].rows)


def find_replacements(capability: str, *, any_source: bool = False) -> tuple[Replacement, ...]:
    """Returns the replacements of a capability that fit the installed Thunder.

    Args:
        capability: the name of a capability in the table.
        any_source: whether unknown sources are accepted, because a probe showed that they behave as expected.

    Raises:
        LookupError: if a row does not fit, and the other rows need it.
    """
    found, group = [], list_patches()[capability]
    any_source = any_source or capability in accepted_capabilities
    for row in group.rows:
        misfit = find_misfit(replace(row, digests=()) if any_source else row)
        if misfit and (group.whole or not row.maker):
            raise LookupError(misfit)
        if misfit:
            logger.info("tracing keeps Thunder's own function: %s", misfit)
        elif row.maker and not row.is_idle:
            found.append(row.make_replacement())
    return (*found, *(find_replacements(group.needs) if group.needs else ()))


def install(capabilities: Iterable[str] = TRACING) -> None:
    """Installs shortcuts that make Thunder trace faster in this process. A second call does nothing.

    A function stays as it is if its source cannot be read, or no shortcut was written for its source.

    Args:
        capabilities: names from ``TRACING``; by default all.

    Raises:
        ValueError: if there is no such capability. Nothing else is raised.
    """
    capabilities = tuple(capabilities)
    unknown = sorted(set(capabilities) - set(TRACING))
    if unknown:
        raise ValueError(f"there are no shortcuts called {', '.join(unknown)}; there are {', '.join(TRACING)}")
    _install({name: partial(find_replacements, name) for name in TRACING if name in capabilities})


def install_more(name: str, replacements: Callable[[], Iterable[Replacement]] | None = None) -> None:
    """Installs replacements that are not shortcuts; ``uninstall`` removes them as well. Never raises.

    Args:
        name: the name of the capability, or of the feature that needs the replacements.
        replacements: returns the replacements, by default those of the capability. Installed ones stay.
    """
    _install({name: replacements or partial(find_replacements, name)})


def _install(wanted: Mapping[str, Callable[[], Iterable[Replacement]]]) -> None:
    # Reading sources and scanning modules would trigger a full garbage collection.
    with _lock, without_collector():
        # Finding replacements imports modules. They are scanned once all are imported.
        found = {name: _find(name, replacements) for name, replacements in wanted.items() if not is_in_place(name)}
        everywhere = any(each.everywhere for replacements in found.values() for each in replacements or ())
        importers = Importers() if everywhere else None
        for name, replacements in found.items():
            if replacements is not None:
                _put_all(name, replacements, importers)


def _find(name: str, replacements: Callable[[], Iterable[Replacement]]) -> tuple[Replacement, ...] | None:
    """Returns the replacements of a capability; None if it does not work here."""
    with log_errors(_WITHOUT, name):  # however this Thunder differs, tracing goes on
        return tuple(replacements())
    return None


def _put_all(name: str, replacements: tuple[Replacement, ...], importers: Importers | None) -> None:
    with log_errors(_WITHOUT, name):  # however this Thunder differs, tracing goes on
        for replacement in replacements:
            _put(replacement, importers)
        _installed_groups[name] = replacements


def is_in_place(name: str) -> bool:
    """True if a capability is installed, and no replacement of it was removed or replaced by other code."""
    ours = {id(new) for _, _, new in _installed}
    return name in _installed_groups and all(id(replacement.get()) in ours for replacement in _installed_groups[name])


def _put(replacement: Replacement, importers: Importers | None) -> None:
    """Installs a replacement, unless it is there already."""
    own = replacement.get()
    if any(_is_there(replacement, own, each, new) for each, _, new in _installed):
        return
    new = replacement.make(own)
    _interpret_own(replacement, own, new)
    _installed.append((replacement, own, new))
    replacement.swap(own, new, importers)


def _interpret_own(replacement: Replacement, own: Any, new: Any) -> None:
    """Registers a lookaside that makes a model's call of a replaced function use the original, or its lookaside.

    An interpreted shortcut would change the trace: it has its own frames, names and reads.
    """
    from thunder.core.interpreter import _interpret_call

    if callable(own) and isinstance(new, FunctionType) and not isinstance(replacement.holder, dict):
        _lookasides()[new] = _lookasides().get(own) or partial(_interpret_call, own)


def _lookasides() -> dict[Any, Any]:
    from thunder.core import interpreter

    return getattr(interpreter, "_default_lookaside_map", {})


def _is_there(replacement: Replacement, own: Any, other: Replacement, new: Any) -> bool:
    """True if ``replacement`` is in place: ``other`` was installed before, as ``new``, and ``own`` is there now."""
    is_same = other.holder is replacement.holder and other.key == replacement.key
    if replacement.around:
        return other.around and is_same and other.make is replacement.make
    return own is new and (own is not None or is_same)


def uninstall() -> None:
    """Restores the original functions of Thunder. Does nothing if ``install`` was not called.

    Functions that other code has replaced since stay replaced.
    """
    with _lock:
        importers = Importers() if _installed else None
        while _installed:
            replacement, own, new = _installed.pop()
            replacement.swap(new, own, importers)
            _lookasides().pop(new, None)
        _installed_groups.clear()


def read_sources() -> dict[str, str]:
    """Returns the stored sources by digest."""
    sources: dict[str, str] = json.loads(lzma.decompress(_SOURCES.read_bytes())) if _SOURCES.exists() else {}
    return sources


def read_installed(row: Patch) -> tuple[str, str] | None:
    """Returns digest and source of a row's function in the installed Thunder; None if it cannot be read."""
    try:
        own = find_original(row)
        return digest_source(own), read_source(own)
    except (LookupError, OSError, TypeError):
        return None


def write_difference(row: Patch, known: Mapping[str, str]) -> list[str]:
    """Returns the lines of a diff from the nearest source that a row was written for to the installed one.

    Args:
        row: a row whose function has another source.
        known: the stored sources by digest.
    """
    installed = read_installed(row)
    originals = [known[digest].splitlines() for digest in row.digests if digest in known]
    if installed is None or not originals:
        return []
    digest, source = installed
    diffs = [
        list(difflib.unified_diff(lines, source.splitlines(), "written for", f"installed {digest}", lineterm=""))
        for lines in originals
    ]
    return min(diffs, key=len)


def add_installed() -> int:
    """Stores the installed sources whose digests are in the table, drops all others, and returns how many remain."""
    rows = [row for group in list_patches().values() for row in group.rows]
    wanted = {digest for row in rows for digest in row.digests}
    found = dict(filter(None, map(read_installed, rows)))
    sources = {digest: text for digest, text in sorted((read_sources() | found).items()) if digest in wanted}
    _SOURCES.write_bytes(lzma.compress(json.dumps(sources).encode(), preset=9))
    return len(sources)


if __name__ == "__main__":
    print(f"{add_installed()} sources are kept")
