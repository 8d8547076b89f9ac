"""Flattening without a set of 30 types built in every call, and without a copy of the tree made first.

``tree_flatten`` asks each time whether it knows the type of what it is given. ``tree_flatten_with_dataclass`` first
maps a function over the tree that changes nothing in it, to find data classes among the leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from fusioncache.thunder_adapter.passes.leaves import leaf_types, root_types


def shorten_flatten(original: Callable[..., Any]) -> Callable[..., Any]:
    """Flattens what has a type of those that are flattened most, where Thunder looks through all that it knows."""
    from optree import _C
    from thunder.core.pytree import OPTREE_NAMESPACE

    known, flatten = root_types(), _C.flatten

    @wraps(original)
    def tree_flatten(args: Any, namespace: str = OPTREE_NAMESPACE) -> Any:
        if type(args) in known:
            return flatten(args, None, True, namespace)
        return original(args, namespace)

    return tree_flatten


def shorten_with_dataclass(original: Callable[..., Any]) -> Callable[..., Any]:
    """Flattens what has leaves of known types only, in containers that each optree knows, so that it has no data class.

    Thunder's own container types, of which some become others when a tree is mapped, are leaves here, of no known type.
    """
    from optree import _C

    known, leaf, flatten = root_types(), leaf_types(), _C.flatten

    @wraps(original)
    def tree_flatten_with_dataclass(tree: Any) -> Any:
        if type(tree) in known:
            flat = flatten(tree, None, True, "")
            if leaf.issuperset(map(type, flat[0])):
                return flat
        return original(tree)

    return tree_flatten_with_dataclass
