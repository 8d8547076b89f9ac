"""Functions mapped over arguments and results without flattening what is flat."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from fusioncache.thunder_adapter.passes.leaves import leaf_types


def shorten_tree_map(original: Callable[..., Any]) -> Callable[..., Any]:
    """Maps a function over a leaf, or a tuple of leaves, at once."""
    leaf = leaf_types()

    @wraps(original)
    def tree_map(func: Callable[..., Any], tree: Any, /, *rests: Any, **options: Any) -> Any:
        if not rests and not options:
            if type(tree) in leaf:
                return func(tree)
            if type(tree) is tuple and leaf.issuperset(map(type, tree)):
                return tuple([func(each) for each in tree])
        return original(func, tree, *rests, **options)

    return tree_map


def shorten_safe_map_flat(original: Callable[..., Any]) -> Callable[..., Any]:
    """Maps a function over two lists or tuples of as many leaves, which it would flatten to themselves."""
    leaf = leaf_types()

    @wraps(original)
    def safe_map_flat(f: Callable[..., Any], *args: Any) -> Any:
        if len(args) == 2 and are_flat(*args):
            return tuple(map(f, *args))
        return original(f, *args)

    def are_flat(one: Any, other: Any) -> bool:
        if not (type(one) in (list, tuple) and type(other) in (list, tuple) and len(one) == len(other)):
            return False
        return leaf.issuperset(map(type, one)) and leaf.issuperset(map(type, other))

    return safe_map_flat


def shorten_order_proxies(original: Callable[..., Any]) -> Callable[..., Any]:
    """Goes through an operation's arguments and result as they are where they are leaves."""
    from thunder.core.pytree import tree_iter

    from fusioncache.thunder_adapter.api import Proxy

    leaf = leaf_types()

    @wraps(original)
    def order_proxies(bsyms: Any) -> dict[str, int]:
        order: dict[str, int] = {}
        add(bsyms, order)
        return order

    def add(bsyms: Any, order: dict[str, int]) -> None:
        for bsym in bsyms:
            if len(bsym.subsymbols) > 0:
                add(bsym.subsymbols, order)
            for each in leaves(bsym.args, bsym.kwargs, bsym.output):
                if isinstance(each, Proxy) and each.name not in order:
                    order[each.name] = len(order) + 1

    def leaves(args: Any, kwargs: Any, output: Any) -> Iterable[Any]:
        plain = type(args) is tuple and type(kwargs) is dict and not kwargs and type(output) in leaf
        return (*args, output) if plain and leaf.issuperset(map(type, args)) else tree_iter((args, kwargs, output))

    return order_proxies
