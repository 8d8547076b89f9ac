"""Bound symbols copied, renamed and asked for their proxies with fewer steps.

Most have leaves for arguments and results. Thunder flattens and rebuilds each tree of them, for each copy three times.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any

from fusioncache.thunder_adapter.passes.leaves import leaf_types, proxy_types

_OF_ARGS, _OF_OUTPUT = "_leaves_of_args", "_leaves_of_output"
"""Where a bound symbol has what its proxies were found in, if that cannot change: a leaf, or a tuple of leaves."""
_ABSENT = object()


def shorten_copy(original: Callable[..., Any]) -> Callable[..., Any]:
    """Sets a copy's attributes one by one, where Thunder passes them through a dict and a constructor."""
    from fusioncache.thunder_adapter.api import BoundSymbol

    fields = frozenset(BoundSymbol.__dataclass_fields__)

    @wraps(original)
    def from_bsym(self: Any, **kwargs: Any) -> Any:
        if type(self) is not BoundSymbol or not fields.issuperset(kwargs):
            return original(self, **kwargs)
        new: Any = object.__new__(BoundSymbol)
        new.sym = self.sym
        new.args = self.args
        new.kwargs = self.kwargs
        new.output = self.output
        new.subsymbols = self.subsymbols
        new.header = self.header
        new.source_filename = self.source_filename
        new.source_positions = self.source_positions
        new.tags = self.tags.copy()
        new._call_ctx = self._call_ctx
        new._import_ctx = self._import_ctx
        new._object_ctx = self._object_ctx
        new._executor = self._executor
        new._line_no = None
        for name, value in kwargs.items():
            setattr(new, name, value)
        new.args = tuple(new.args)
        if new.sym._bind_postprocess:
            new.sym._bind_postprocess(new)
        _copy_answers(self, new)
        return new

    return from_bsym


def _copy_answers(old: Any, new: Any) -> None:
    """Copies what the old one answered of its leaves, if that still follows from what the new one has."""
    of_old, of_new = vars(old), vars(new)
    known = of_old.get(_OF_ARGS)
    if known is not None and known is new.args and not new.kwargs and "flat_proxy_args" in of_old:
        of_new[_OF_ARGS], of_new["flat_proxy_args"] = known, of_old["flat_proxy_args"]
    known = of_old.get(_OF_OUTPUT, _ABSENT)
    if known is new.output and "flat_proxy_outs" in of_old:
        of_new[_OF_OUTPUT], of_new["flat_proxy_outs"] = known, of_old["flat_proxy_outs"]


def shorten_swap(original: Callable[..., Any]) -> Callable[..., Any]:
    """Exchanges proxies among leaves one by one, and flattens only what has other things in it than leaves."""
    swap = _make_swap()

    @wraps(original)
    def from_bsym_swap_proxies(
        self: Any, swap_map: Any, skip_inputs: bool = False, skip_output: bool = False, skip_subsymbols: bool = False
    ) -> Any:
        if len(swap_map) == 0:
            return self
        args = self.args if skip_inputs else swap(self.args, swap_map)
        kwargs = self.kwargs if skip_inputs else swap(self.kwargs, swap_map)
        output = self.output if skip_output else swap(self.output, swap_map)
        subsymbols = list(self.subsymbols)
        if not skip_subsymbols:
            flags = (skip_inputs, skip_output, skip_subsymbols)
            subsymbols = [each.from_bsym_swap_proxies(swap_map, *flags) for each in subsymbols]
        return self.from_bsym(args=args, kwargs=kwargs, output=output, subsymbols=subsymbols)

    return from_bsym_swap_proxies


def _make_swap() -> Callable[[Any, Any], Any]:
    """Makes a function that exchanges proxies in a tree by a map of variables to other proxies."""
    from thunder.core.pytree import tree_flatten_with_dataclass, tree_unflatten

    leaf = leaf_types()

    def swap(tree: Any, swap_map: Any) -> Any:
        kind = type(tree)
        if kind in leaf:
            return swap_leaf(tree, swap_map)
        if kind is tuple and leaf.issuperset(map(type, tree)):
            return tuple([swap_leaf(each, swap_map) for each in tree])
        if kind is dict and not tree:
            return {}
        flat, spec = tree_flatten_with_dataclass(tree)
        return tree_unflatten([swap_leaf(each, swap_map) for each in flat], spec)

    swap_leaf = _make_swap_leaf(swap)
    return swap


def _make_swap_leaf(swap: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    from fusioncache.thunder_adapter.api import CollectionProxy, Proxy, Variable, tree_map

    proxies = proxy_types()

    def swap_leaf(value: Any, swap_map: Any) -> Any:
        if type(value) not in proxies:
            if isinstance(value, CollectionProxy):
                value.coll = tree_map(lambda each: swap(each, swap_map), value.collection())
            if not isinstance(value, Proxy):
                return value
        return _follow(value, swap_map) if Variable(value) in swap_map else value

    return swap_leaf


def _follow(value: Any, swap_map: Any) -> Any:
    """Goes on from a proxy to the next until the map does not know it, or names it as its own next."""
    from thunder.core import baseutils

    from fusioncache.thunder_adapter.api import variableify

    visited: set[Any] = set()
    variable = variableify(value)
    while variable in swap_map and swap_map[variable] is not value:
        baseutils.check(
            variable not in visited, lambda: f"Detected a cycle while swapping; the cycle includes {visited}"
        )
        visited.add(variable)
        value = swap_map[variable]
        variable = variableify(value)
    return value


def shorten_flat_args(original: Any) -> Any:
    """Takes arguments as they are if they are leaves."""
    leaf = leaf_types()

    def flat_args(self: Any) -> list[Any]:
        args, kwargs = self.args, self.kwargs
        plain = type(args) is tuple and type(kwargs) is dict and not kwargs and "flat_args_and_spec" not in vars(self)
        return list(args) if plain and leaf.issuperset(map(type, args)) else original.func(self)

    return _cache(original, flat_args)


def shorten_flat_outs(original: Any) -> Any:
    """Takes a result as it is if it is a leaf, or a tuple or a list of leaves."""
    leaf = leaf_types()

    def flat_outs(self: Any) -> list[Any]:
        output = self.output
        if "flat_outs_and_spec" not in vars(self):
            if type(output) in leaf:
                return [output]
            if type(output) in (tuple, list) and leaf.issuperset(map(type, output)):
                return list(output)
        return original.func(self)

    return _cache(original, flat_outs)


def shorten_flat_proxy_args(original: Any) -> Any:
    """Picks the proxies in arguments that are leaves, and says that it did."""
    from fusioncache.thunder_adapter.api import Proxy

    leaf = leaf_types()

    def flat_proxy_args(self: Any) -> tuple[Any, ...]:
        args, own = self.args, vars(self)
        if type(args) is not tuple or self.kwargs or "flat_args" in own or not leaf.issuperset(map(type, args)):
            return tuple([each for each in self.flat_args if isinstance(each, Proxy)])
        if "flat_args_and_spec" in own or type(self.kwargs) is not dict:
            return tuple([each for each in self.flat_args if isinstance(each, Proxy)])
        own[_OF_ARGS] = args
        return tuple([each for each in args if isinstance(each, Proxy)])

    return _cache(original, flat_proxy_args)


def shorten_flat_proxy_outs(original: Any) -> Any:
    """Picks the proxies in a result that is a leaf or a tuple of leaves, and says that it did."""
    from fusioncache.thunder_adapter.api import Proxy

    leaf = leaf_types()

    def flat_proxy_outs(self: Any) -> tuple[Any, ...]:
        output, own = self.output, vars(self)
        if "flat_outs" in own or "flat_outs_and_spec" in own:
            return tuple([each for each in self.flat_outs if isinstance(each, Proxy)])
        if type(output) in leaf:
            own[_OF_OUTPUT] = output
            return (output,) if isinstance(output, Proxy) else ()
        if type(output) is tuple and leaf.issuperset(map(type, output)):
            own[_OF_OUTPUT] = output
            return tuple([each for each in output if isinstance(each, Proxy)])
        return tuple([each for each in self.flat_outs if isinstance(each, Proxy)])

    return _cache(original, flat_proxy_outs)


def _cache(original: Any, function: Callable[[Any], Any]) -> Any:
    """Makes a property of a function as the original is one, under its name."""
    new: Any = cached_property(wraps(original.func)(function))
    new.attrname = original.attrname
    return new
