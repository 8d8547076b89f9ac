"""What a prologue takes out of Thunder's module by name: parameters, buffers and submodules.

Thunder's module has a dictionary of each kind, looks there first, and into the module that was compiled if there is
nothing. Each of its methods is one call and four lookups for one item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    from thunder.core.module import ThunderModule

    if type(module) is not ThunderModule:
        return *(_NOTHING.get for _ in METHODS), _NOTHING
    return *(_find_lookup(module, *lookup) for lookup in METHODS.items()), module._null


def _find_lookup(module: Any, method: str, attribute: str) -> Callable[[str, Any], Any]:
    items = vars(module).get(attribute)
    is_own = method not in vars(module) and vars(type(module)).get(method) is _find_own().get(method)
    return items.get if is_own and type(items) is dict else _NOTHING.get


@cache
def _find_own() -> Mapping[str, Any]:
    """Returns those of the methods that are as they are known to be."""
    from thunder.core.module import ThunderModule

    methods = {method: vars(ThunderModule)[method] for method in METHODS}
    return {method: function for method, function in methods.items() if is_known(function, _SOURCES[method])}
