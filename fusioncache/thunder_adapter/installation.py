"""Installs and removes replacements of Thunder's functions.

Most take detours out of Thunder's tracing: the same traces, in a fraction of the time.

Thunder interprets the bytecode of a model, and looks up whatever that uses through interpreted code of its own. For one
layer of litgpt's Llama it runs 11,000 frames so, of which 10,000 only subscript a dict of globals or builtins.
Each replacement computes what the original computes, and is installed only where the original has the source that the
replacement was written for. ``fusioncache doctor`` compares another source with that one.
``python -m fusioncache.thunder_adapter.installation`` adds the installed sources whose digests are in the table.
"""

from __future__ import annotations

import difflib
import json
import logging
import lzma
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

from fusioncache.process import forks
from fusioncache.process.collector import without_collector
from fusioncache.thunder_adapter.patches import (
    Importers,
    Patch,
    Replacement,
    digest_source,
    is_known,
    list_patches,
    read_source,
)

logger = logging.getLogger("fusioncache")

_SOURCES = Path(__file__).with_name("sources.json.xz")
"""The sources that the rows of the table were written for."""

TRACING = (
    *("containers", "frames", "natives", "cells", "instructions", "values", "constraints", "attributes", "conditions"),
    *("operators", "iteration", "leaps", "collector", "flattening", "signatures", "symbols", "mapping", "lookups"),
    *("dead_code", "min_cut", "regions", "printing", "tensors"),
    # Last, as they stand around what others have shortened.
    *("hooks", "layers"),
)
"""The capabilities that make tracing faster, in the order in which they are installed. ``layers`` needs ``hooks``."""

_lock = forks.lock()
_installed: list[tuple[Replacement, Any, Any]] = []
"""The replacements that are installed, each with Thunder's own function and the shortcut. The process has one list."""
accepted: set[str] = set()
"""The capabilities whose sources need not be known."""
_whole: dict[str, tuple[Replacement, ...]] = {}
"""The groups of which everything is installed. Reading the sources of Thunder again would take a later call 0.1 s."""


def list_installed() -> tuple[str, ...]:
    """Returns the names of the capabilities that are installed."""
    return tuple(_whole)


def accept(capability: str) -> None:
    """Has all sources of a capability accepted from now on, because a probe showed that they behave as expected."""
    accepted.add(capability)


def find_misfit(row: Patch) -> str | None:
    """Returns why a row of the table does not fit the installed Thunder; None if it fits."""
    if row.is_idle:
        return None
    try:
        own = find_original(row)
    except LookupError as error:
        return str(error)
    return None if not row.digests or is_known(own, row.digests) else f"{row.original} has another source"


def find_own(value: Any) -> Any:
    """Returns Thunder's own function behind replacements that are installed."""
    replaced = {id(new): own for _, own, new in _installed}
    while id(value) in replaced:
        value = replaced[id(value)]
    return value


def find_original(row: Patch) -> Any:
    """Returns Thunder's own function that a row of the table is about.

    Raises:
        LookupError: if this Thunder has no such function.
    """
    return find_own(Replacement(*row.locate(), type).get())


def find_known(capability: str) -> dict[str, Any]:
    """Returns the functions of a capability whose sources are known, by their name in the table."""
    rows = [row for row in list_patches()[capability].rows if not row.is_idle and find_misfit(row) is None]
    return {row.original: find_original(row) for row in rows}


@cache
def is_known_whole(capability: str) -> bool:
    """True if all functions of a capability have known sources."""
    return all(find_misfit(row) is None for row in list_patches()[capability].rows)


def find_replacements(capability: str, *, any_source: bool = False) -> tuple[Replacement, ...]:
    """Returns the replacements of a capability that fit the installed Thunder.

    Args:
        capability: of the table.
        any_source: whether sources need not be known, because a probe showed that they behave as expected.

    Raises:
        LookupError: if a row does not fit that the others need.
    """
    found, group = [], list_patches()[capability]
    any_source = any_source or capability in accepted
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
    """Lets Thunder trace faster from now on, in this process. A second call does nothing.

    A function whose source is not one that a shortcut was written for, or cannot be read, stays as it is.

    Args:
        capabilities: the names of what to install, of ``TRACING``; by default all.

    Raises:
        ValueError: if there is no such capability. Nothing else is raised.
    """
    capabilities = tuple(capabilities)
    unknown = sorted(set(capabilities) - set(TRACING))
    if unknown:
        raise ValueError(f"there are no shortcuts called {', '.join(unknown)}; there are {', '.join(TRACING)}")
    _install({name: partial(find_replacements, name) for name in TRACING if name in capabilities})


def install_more(name: str, replacements: Callable[[], Iterable[Replacement]] | None = None) -> None:
    """Installs replacements that are no shortcuts; ``uninstall`` takes them out as well. Never raises.

    Args:
        name: of the capability, or of what does not work without them.
        replacements: returns them. Those that are there already stay. By default those of the capability.
    """
    _install({name: replacements or partial(find_replacements, name)})


def _install(wanted: Mapping[str, Callable[[], Iterable[Replacement]]]) -> None:
    # Sources and modules are looked through: without the pause a collection of all objects comes in between.
    with _lock, without_collector():
        # Finding them imports modules. The modules are looked through once all are there.
        found = {name: _find(name, replacements) for name, replacements in wanted.items() if not _is_in_place(name)}
        everywhere = any(each.everywhere for replacements in found.values() for each in replacements or ())
        importers = Importers() if everywhere else None
        for name, replacements in found.items():
            if replacements is not None:
                _put_all(name, replacements, importers)


def _find(name: str, replacements: Callable[[], Iterable[Replacement]]) -> tuple[Replacement, ...] | None:
    """Returns the replacements of a capability; None if it does not work here."""
    try:
        return tuple(replacements())
    except Exception as error:  # whatever is otherwise in this Thunder, tracing goes on
        logger.info("tracing does without the shortcuts of %s", name, exc_info=error)
        return None


def _put_all(name: str, replacements: tuple[Replacement, ...], importers: Importers | None) -> None:
    try:
        for replacement in replacements:
            _put(replacement, importers)
        _whole[name] = replacements
    except Exception as error:  # whatever is otherwise in this Thunder, tracing goes on
        logger.info("tracing does without the shortcuts of %s", name, exc_info=error)


def _is_in_place(name: str) -> bool:
    """True if a capability is installed, and none of it was taken out or replaced by other code."""
    ours = {id(new) for _, _, new in _installed}
    return name in _whole and all(id(replacement.get()) in ours for replacement in _whole[name])


def _put(replacement: Replacement, importers: Importers | None) -> None:
    """Installs a replacement, unless it is there already."""
    own = replacement.get()
    if any(_is_there(replacement, each) if replacement.around else own is new for each, _, new in _installed):
        return
    new = replacement.make(own)
    _interpret_own(replacement, own, new)
    _installed.append((replacement, own, new))
    replacement.swap(own, new, importers)


def _interpret_own(replacement: Replacement, own: Any, new: Any) -> None:
    """Has Thunder's own function interpreted where a model's code calls what was replaced, by way of Thunder's own.

    Interpreted, a shortcut would leave another trace: its own frames, names and reads.
    """
    from thunder.core.interpreter import _interpret_call

    if callable(own) and isinstance(new, FunctionType) and not isinstance(replacement.holder, dict):
        _lookasides()[new] = _lookasides().get(own) or partial(_interpret_call, own)


def _lookasides() -> dict[Any, Any]:
    from thunder.core import interpreter

    return getattr(interpreter, "_default_lookaside_map", {})


def _is_there(replacement: Replacement, other: Replacement) -> bool:
    is_same = other.holder is replacement.holder and other.key == replacement.key
    return other.around and is_same and _name(other.make) == _name(replacement.make)


def _name(function: Any) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def uninstall() -> None:
    """Gives Thunder its own functions back. Does nothing if ``install`` was not called.

    What other code has replaced since stays replaced.
    """
    with _lock:
        importers = Importers() if _installed else None
        while _installed:
            replacement, own, new = _installed.pop()
            replacement.swap(new, own, importers)
            _lookasides().pop(new, None)
        _whole.clear()


def read_sources() -> dict[str, str]:
    """Returns the sources by digest."""
    sources: dict[str, str] = json.loads(lzma.decompress(_SOURCES.read_bytes())) if _SOURCES.exists() else {}
    return sources


def read_installed(row: Patch) -> tuple[str, str] | None:
    """Returns digest and source of the function of a row in the installed Thunder; None if it cannot be read."""
    try:
        own = find_original(row)
        return digest_source(own), read_source(own)
    except (LookupError, OSError, TypeError):
        return None


def write_difference(row: Patch, known: Mapping[str, str]) -> list[str]:
    """Returns the lines of a diff from the nearest source that a row was written for to the installed one.

    Args:
        row: whose function has another source.
        known: sources by digest.
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
    """Adds installed sources whose digests are in the table, and drops all others. Returns how many are kept."""
    rows = [row for group in list_patches().values() for row in group.rows]
    wanted = {digest for row in rows for digest in row.digests}
    found = dict(filter(None, map(read_installed, rows)))
    sources = {digest: text for digest, text in sorted((read_sources() | found).items()) if digest in wanted}
    _SOURCES.write_bytes(lzma.compress(json.dumps(sources).encode(), preset=9))
    return len(sources)


if __name__ == "__main__":
    print(f"{add_installed()} sources are kept")
