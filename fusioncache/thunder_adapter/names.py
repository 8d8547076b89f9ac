"""The names of Thunder that each accelerator uses: ``names.txt``, which a test compares with the sources."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

_LOADED_ONLY = frozenset({"thunder.dynamo", "thunder.executors.nvfuserex_impl"})
"""Modules that are looked at only if they were imported: they take long, or need another package."""


@cache
def list_names() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Returns the names by accelerator, or ``core``, and module."""
    names: dict[str, dict[str, tuple[str, ...]]] = {}
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        if line.startswith("["):
            names[line.strip("[]")] = found = {}
        elif line:
            module, _, rest = line.partition(": ")
            found[module] = tuple(rest.split())
    return MappingProxyType(names)


def find_missing(accelerator: str) -> list[str]:
    """Returns the names that the installed Thunder lacks, as ``module.name``."""
    return [
        name
        for module, names in list_names()[accelerator].items()
        if module not in _LOADED_ONLY or module in sys.modules
        for name in _find_missing(module, names)
    ]


def _find_missing(module: str, names: tuple[str, ...]) -> Iterator[str]:
    try:
        found = importlib.import_module(module)
    except ImportError:
        yield module
        return
    for name in names:
        if not hasattr(found, name) and not _is_module(f"{module}.{name}"):
            yield f"{module}.{name}"


def _is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
