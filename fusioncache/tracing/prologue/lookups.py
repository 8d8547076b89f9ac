"""What a prologue takes out of Thunder's module by name: parameters, buffers and submodules.

Thunder's module has a dictionary of each kind, looks there first, and into the module that was compiled if there is
nothing. Each of its methods is one call and four lookups for one item.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from fusioncache.tracing.replacement import is_known

METHODS: Mapping[str, str] = MappingProxyType(
    {
        "get_parameter": "_overrides_parameters",
        "get_buffer": "_overrides_buffers",
        "get_submodule": "_module_cache",
    }
)
"""The methods of Thunder's module, each with the attribute that has its dictionary."""

_SOURCES = MappingProxyType(
    {"get_parameter": "9a64fe5010142f25", "get_buffer": "b6afcfd27b3e11b8", "get_submodule": "bfd24bd0a873e6cb"}
)
"""The first digits of the SHA-256 of the sources of these methods: others are called."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def find_lookups(module: Any) -> tuple[Any, ...]:
    """Returns for each method what looks into its dictionary, and what stands for nothing there.

    The former are functions of a name and of the latter. Where a method is not Thunder's own, it finds nothing.
    """
    known, own = _find_own()
    if type(module) is not known:
        return *(_NOTHING.get for _ in METHODS), _NOTHING
    # One function, as each prologue of each step calls it.
    names, methods, found = vars(module), vars(known), []
    for method, attribute in METHODS.items():
        items = names.get(attribute)
        is_own = method not in names and methods.get(method) is own.get(method)
        found.append(items.get if is_own and type(items) is dict else _NOTHING.get)
    return *found, module._null


@cache
def _find_own() -> tuple[Any, Mapping[str, Any]]:
    """Returns the class of Thunder's modules, and those of its methods that are as they are known to be."""
    from thunder.core.module import ThunderModule

    methods = {method: vars(ThunderModule)[method] for method in METHODS}
    return ThunderModule, {name: each for name, each in methods.items() if is_known(each, _SOURCES[name])}
