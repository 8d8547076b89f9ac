"""Flattening without a set of 30 types built in every call, and without a copy of the tree made first.

``tree_flatten`` asks each time whether it knows the type of what it is given. ``tree_flatten_with_dataclass`` first
maps a function over the tree that changes nothing in it, to find data classes among the leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from fusioncache.tracing.passes.leaves import leaf_types, root_types
from fusioncache.tracing.replacement import Replacement, is_known

_OF_OPTREE = "6417b6d7a84e04ef"


def replacements() -> tuple[Replacement, ...]:
    """Returns what this group of shortcuts replaces: nothing if optree flattens in another way than the known one."""
    import optree
    from thunder.core import pytree

    if not is_known(optree.tree_flatten, _OF_OPTREE):
        return ()
    with_dataclass = "tree_flatten_with_dataclass"
    return (
        Replacement(pytree, "tree_flatten", "2b634647c6d19149", shorten_flatten, everywhere=True),
        Replacement(pytree, with_dataclass, "8cc29b0cbca6a938", shorten_with_dataclass, everywhere=True),
    )


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
