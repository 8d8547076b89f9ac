"""What a prologue takes out of Thunder's module by name: parameters, buffers, submodules, and attributes of the model.

Thunder's module has a dictionary of each of the former kinds, looks there first, and into the module that was compiled
if there is nothing. Each of its methods is one call and four lookups for one item. An attribute that it does not have
itself it takes from the module that was compiled, which two calls of its ``__getattr__`` find.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from fusioncache.thunder_adapter.installation import find_known

METHODS: Mapping[str, str] = MappingProxyType(
    {
        "get_parameter": "_overrides_parameters",
        "get_buffer": "_overrides_buffers",
        "get_submodule": "_module_cache",
    }
)
"""The methods of Thunder's module, each with the attribute that has its dictionary."""

GIVE_TENSORS = frozenset({"get_parameter", "get_buffer"})
"""Those of these methods that return a tensor."""

_GETATTR = "__getattr__"


_NOTHING: Mapping[str, Any] = MappingProxyType({})


def find_lookups(module: Any, attributes: frozenset[str]) -> tuple[Any, ...]:
    """Returns what looks for items and attributes in the place of Thunder's module.

    Args:
        module: Thunder's, or another.
        attributes: that are read of it.

    Returns:
        For each method a function of a name and of what stands for nothing. It finds nothing where the method is not
        Thunder's own. Then what stands for nothing, the module that has the attributes, and the names of those that are
        to be read of Thunder's all the same.
    """
    known, own = _find_own()
    if type(module) is not known:
        return *(_NOTHING.get for _ in METHODS), _NOTHING, module, attributes
    # One function, as each prologue of each step calls it.
    names, methods, found = vars(module), vars(known), []
    for method, attribute in METHODS.items():
        items = names.get(attribute)
        is_own = method not in names and methods.get(method) is own.get(method)
        found.append(items.get if is_own and type(items) is dict else _NOTHING.get)
    is_own = _GETATTR in own and methods.get(_GETATTR) is own[_GETATTR]
    model = names["_modules"].get("_model")
    if not is_own or model is None or any(hasattr(known, name) for name in attributes):
        return *found, module._null, module, attributes
    return *found, module._null, model, names


@cache
def _find_own() -> tuple[Any, Mapping[str, Any]]:
    """Returns the class of Thunder's modules, and those of its methods that are as they are known to be."""
    from fusioncache.thunder_adapter.api import ThunderModule

    return ThunderModule, {name.rpartition(".")[2]: each for name, each in find_known("module lookups").items()}
