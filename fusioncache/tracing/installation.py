"""Takes a few detours out of Thunder's tracing: the same traces, in a fraction of the time.

Thunder interprets the bytecode of a model, and looks up whatever that uses through interpreted code of its own. For one
layer of litgpt's Llama it runs 11,000 frames so, of which 10,000 only subscript a dict of globals or builtins.
Each replacement computes what the original computes, and is installed only where the original has the source that the
replacement was written for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import FunctionType, MappingProxyType
from typing import Any

from fusioncache.process import forks
from fusioncache.thunder_adapter.versions import explain_untried
from fusioncache.tracing.interpreter import (
    attributes,
    cells,
    conditions,
    constraints,
    containers,
    frames,
    instructions,
    iteration,
    leaps,
    natives,
    operators,
    values,
)
from fusioncache.tracing.layers import blocks
from fusioncache.tracing.passes import (
    collector,
    dead_code,
    flattening,
    lookups,
    mapping,
    min_cut,
    printing,
    regions,
    signatures,
    symbols,
    tensors,
)
from fusioncache.tracing.replacement import Importers, Replacement
from fusioncache.tracing.watch import hooks

logger = logging.getLogger("fusioncache")

GROUPS: Mapping[str, Callable[[], tuple[Replacement, ...]]] = MappingProxyType(
    {
        "containers": containers.replacements,
        "frames": frames.replacements,
        "natives": natives.replacements,
        "cells": cells.replacements,
        "instructions": instructions.replacements,
        "values": values.replacements,
        "constraints": constraints.replacements,
        "attributes": attributes.replacements,
        "conditions": conditions.replacements,
        "operators": operators.replacements,
        "iteration": iteration.replacements,
        "leaps": leaps.replacements,
        "collector": collector.replacements,
        "flattening": flattening.replacements,
        "signatures": signatures.replacements,
        "symbols": symbols.replacements,
        "mapping": mapping.replacements,
        "lookups": lookups.replacements,
        "dead_code": dead_code.replacements,
        "min_cut": min_cut.replacements,
        "regions": regions.replacements,
        "printing": printing.replacements,
        "tensors": tensors.replacements,
        # Last, as they stand around what others have shortened.
        "hooks": hooks.replacements,
        "layers": blocks.replacements,
    }
)
"""The groups of shortcuts by name, in the order in which they are installed. Each works without the others."""

_lock = forks.lock()
_installed: list[tuple[Replacement, Any, Any]] = []
"""The replacements that are installed, each with Thunder's own function and the shortcut. The process has one list."""
_whole: dict[str, tuple[Replacement, ...]] = {}
"""The groups of which everything is installed. Reading the sources of Thunder again would take a later call 0.1 s."""


def install(groups: Iterable[str] = tuple(GROUPS)) -> None:
    """Lets Thunder trace faster from now on, in this process. A second call does nothing.

    A function whose source is not the one that a shortcut was written for, or cannot be read, stays as it is.

    Args:
        groups: the names of the groups of shortcuts to install, of ``GROUPS``; by default all.

    Raises:
        ValueError: if there is no such group. Nothing else is raised.
    """
    groups = tuple(groups)
    unknown = sorted(set(groups) - set(GROUPS))
    if unknown:
        raise ValueError(f"there are no shortcuts called {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    if explain_untried():
        return
    with _lock:
        missing = [name for name in GROUPS if name in groups and not _is_in_place(name)]
        importers = Importers() if missing else None
        for name in missing:
            _install(name, GROUPS[name], importers)


def install_more(name: str, replacements: Callable[[], Iterable[Replacement]]) -> None:
    """Installs replacements that are no shortcuts; ``uninstall`` takes them out as well. Never raises.

    Args:
        name: of what does not work without them, for the log.
        replacements: returns them. Those that are there already stay.
    """
    if explain_untried():
        return
    with _lock:
        if not _is_in_place(name):
            _install(name, replacements)


def _install(name: str, replacements: Callable[[], Iterable[Replacement]], importers: Importers | None = None) -> None:
    try:
        found = tuple(replacements())
        there = [_put(replacement, importers) for replacement in found]
        if all(there):
            _whole[name] = found
    except Exception as error:  # whatever is otherwise in this Thunder, tracing goes on
        logger.info("tracing does without the shortcuts of %s", name, exc_info=error)


def _is_in_place(name: str) -> bool:
    """Tells whether a group is wholly installed, and nobody has taken any of it out or put something over it."""
    ours = {id(new) for _, _, new in _installed}
    return name in _whole and all(id(replacement.get()) in ours for replacement in _whole[name])


def _put(replacement: Replacement, importers: Importers | None) -> bool:
    """Installs a replacement, and returns whether it is there."""
    own = replacement.get()
    if any(_is_there(replacement, each) if replacement.around else own is new for each, _, new in _installed):
        return True
    if not replacement.fits():
        logger.info("tracing keeps Thunder's own %s: it is not the known one", replacement.key)
        return False
    new = replacement.make(own)
    _interpret_own(replacement, own, new)
    _installed.append((replacement, own, new))
    replacement.swap(own, new, importers)
    return True


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
