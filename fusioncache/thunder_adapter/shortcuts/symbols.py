"""Shortcuts for operations: they bind, flatten, print and swap arguments in fewer steps.

Most operations have leaves as arguments and results. Thunder flattens and rebuilds each tree of them three times for
each copy; checks in each ``tree_flatten`` whether it supports the argument's type; maps an identity function over a
tree to find data classes; and builds a signature for each operation of each trace.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache, cached_property, update_wrapper, wraps
from types import FunctionType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from thunder.core import baseutils, codeutils, proxies

from fusioncache.thunder_adapter.api import CollectionProxy, Proxy, Symbol, Variable, devices, dtypes, variableify


@cache
def leaf_types() -> frozenset[type]:
    """Returns types whose instances are always leaves of Thunder's trees, and never data classes."""
    more = (dtypes.unsignedinteger, dtypes.complexfloating, proxies.Variable, codeutils.ContextObject)
    return root_types().union(more) - {tuple, list, dict}


@cache
def root_types() -> frozenset[type]:
    """Returns types that Thunder flattens regardless of their contents: leaves and plain containers."""
    import torch

    plain = (int, float, complex, bool, str, type(None), tuple, list, dict)
    of_thunder = (dtypes.floating, dtypes.signedinteger, dtypes.bool_, devices.Device)
    return proxy_types().union(plain, of_thunder, (torch.dtype, torch.device))


@cache
def proxy_types() -> frozenset[type]:
    """Returns the types of proxies of numbers, tensors, and other values that are not containers."""
    of_numbers = (proxies.NumberProxy, proxies.IntegerProxy, proxies.FloatProxy, proxies.ComplexProxy)
    return frozenset((proxies.Proxy, proxies.AnyProxy, proxies.TensorProxy, proxies.FutureTensorProxy, *of_numbers))


def shorten_flatten(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a ``tree_flatten`` that checks the most frequent types first, where Thunder checks all it supports."""
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
    """Returns a flatten function for trees of known leaf types in optree's standard containers: without data classes.

    Thunder's own container types are leaves of unknown types here: some become other types when a tree is mapped.
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


def shorten_safe_map_flat(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a ``safe_map_flat`` that does not flatten two equally long lists or tuples of leaves."""
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


def shorten_to_printable(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a ``to_printable`` that returns proxies, numbers, strings and tuples of them without a rebuild."""
    values = frozenset((int, float, complex, bool, str)) & frozenset(baseutils._printable_value_types)
    printable = proxy_types().union(values, (type(None),))

    @wraps(original)
    def to_printable(trace: Any, x: Any, *, import_ctx: Any = None, object_ctx: Any = None) -> Any:
        kind = type(x)
        if kind in printable or (kind is tuple and printable.issuperset(map(type, x))):
            return x
        if kind is dict and not x:
            return {}
        return original(trace, x, import_ctx=import_ctx, object_ctx=object_ctx)

    return to_printable


def shorten_normalize(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a ``normalize`` that builds the signature of a function once, where Thunder does so in each call."""
    known: WeakKeyDictionary[Any, tuple[Any, inspect.Signature]] = WeakKeyDictionary()

    def find_signature(meta: Any) -> inspect.Signature:
        if type(meta) not in (FunctionType, Symbol):
            return inspect.signature(meta)
        function = vars(Symbol)["__call__"] if type(meta) is Symbol else meta
        defaults, found = _read_defaults(inspect.unwrap(function)), known.get(function)
        if not found or found[0] != defaults:
            found = known[function] = defaults, inspect.signature(meta)
        return found[1]

    names = {**original.__globals__, "inspect": SimpleNamespace(signature=find_signature)}
    return update_wrapper(FunctionType(original.__code__, names), original)


def _read_defaults(function: Any) -> tuple[Any, ...]:
    """Returns the code and the defaults of a function, which other code may change."""
    named = getattr(function, "__kwdefaults__", None) or {}
    return getattr(function, "__code__", None), getattr(function, "__defaults__", None), tuple(named.items())


# Cached properties of a bound symbol. Later results follow from these, even if its arguments have changed since.
_FLAT_ARGS, _FLAT_OUTS = frozenset({"flat_args", "flat_args_and_spec"}), frozenset({"flat_outs", "flat_outs_and_spec"})


def shorten_flat_args(original: Any) -> Any:
    """Returns a cached property ``flat_args`` that does not flatten arguments that are leaves."""
    leaf = leaf_types()

    def flat_args(self: Any) -> list[Any]:
        args, kwargs = self.args, self.kwargs
        plain = type(args) is tuple and type(kwargs) is dict and not kwargs and "flat_args_and_spec" not in vars(self)
        return list(args) if plain and leaf.issuperset(map(type, args)) else original.func(self)

    return _make_property(original, flat_args)


def shorten_flat_outs(original: Any) -> Any:
    """Returns a cached property ``flat_outs`` that does not flatten a leaf, or a tuple or list of leaves."""
    leaf = leaf_types()

    def flat_outs(self: Any) -> list[Any]:
        output = self.output
        if "flat_outs_and_spec" not in vars(self):
            if type(output) in leaf:
                return [output]
            if type(output) in (tuple, list) and leaf.issuperset(map(type, output)):
                return list(output)
        return original.func(self)

    return _make_property(original, flat_outs)


def shorten_flat_proxy_args(original: Any) -> Any:
    """Returns a cached property ``flat_proxy_args`` that filters leaf arguments without caching a list of them."""
    leaf = leaf_types()

    def flat_proxy_args(self: Any) -> tuple[Any, ...]:
        args, kwargs, own = self.args, self.kwargs, vars(self)
        plain = type(args) is tuple and type(kwargs) is dict and not kwargs and _FLAT_ARGS.isdisjoint(own)
        flat = args if plain and leaf.issuperset(map(type, args)) else self.flat_args
        return tuple([each for each in flat if isinstance(each, Proxy)])

    return _make_property(original, flat_proxy_args)


def shorten_flat_proxy_outs(original: Any) -> Any:
    """Returns a cached property ``flat_proxy_outs`` that filters leaf results without caching a list of them."""
    leaf = leaf_types()

    def flat_proxy_outs(self: Any) -> tuple[Any, ...]:
        output = self.output
        if _FLAT_OUTS.isdisjoint(vars(self)):
            if type(output) in leaf:
                return (output,) if isinstance(output, Proxy) else ()
            if type(output) is tuple and leaf.issuperset(map(type, output)):
                return tuple([each for each in output if isinstance(each, Proxy)])
        return tuple([each for each in self.flat_outs if isinstance(each, Proxy)])

    return _make_property(original, flat_proxy_outs)


def _make_property(original: Any, function: Callable[[Any], Any]) -> Any:
    """Returns a cached property of a function, under the name of the original."""
    new: Any = cached_property(wraps(original.func)(function))
    new.attrname = original.attrname
    return new


def shorten_tree_map(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a ``tree_map`` that does not flatten a leaf, or a tuple of leaves."""
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


def shorten_swap(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a ``from_bsym_swap_proxies`` that swaps leaves one by one, and flattens only nested trees."""
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
    """Returns a function that swaps proxies in a tree by a map from variables to other proxies."""
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
    from fusioncache.thunder_adapter.api import tree_map

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
    """Follows the map from proxy to proxy until one has no entry or maps to itself, and returns that one."""
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


def shorten_infer_properties(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an ``_infer_tensor_properties`` for plain shapes and Thunder's dtypes, if the tensor is not sharded."""
    from thunder.core.compile_data import using_symbolic_values
    from thunder.core.proxies import DistParallelType

    unsharded, kinds = DistParallelType.NONE, _describe_dtypes()

    @wraps(original)
    def _infer_tensor_properties(
        like: Any = None,
        shape: Any = None,
        device: Any = None,
        dtype: Any = None,
        requires_grad: Any = None,
        grad: Any = None,
        distparallel_type: Any = None,
        thunder_fsdp_padding_size: Any = None,
    ) -> Any:
        known = kinds.get(id(dtype))
        plain = like is None and type(device) is devices.Device and type(requires_grad) is bool
        sharded = thunder_fsdp_padding_size is not None or distparallel_type not in (None, unsharded)
        if not plain or known is None or sharded or not _is_plain_shape(shape) or using_symbolic_values():
            more = (requires_grad, grad, distparallel_type, thunder_fsdp_padding_size)
            return original(like, shape, device, dtype, *more)
        _, inexact, strong, weak = known
        true = dtype if shape else weak
        needs = requires_grad and inexact
        shape = tuple(shape)
        of_grad = (needs, grad if needs else None)
        return shape, device, strong, true, math.prod(shape), len(shape), *of_grad, unsharded, None

    return _infer_tensor_properties


def _is_plain_shape(shape: Any) -> bool:
    return type(shape) in (tuple, list) and all(type(length) is int and length >= 0 for length in shape)


def _describe_dtypes() -> dict[int, tuple[Any, bool, Any, Any]]:
    """Returns by ``id``: each dtype, whether it is inexact, and its strong and weak counterparts."""
    known: dict[int, tuple[Any, bool, Any, Any]] = {}
    for each in dtypes.all_dtypes:
        weak, strong = dtypes.to_weak_dtype(each), dtypes.to_strong_dtype(each)
        known[id(each)] = (each, dtypes.is_inexact_dtype(each), strong, weak)
    return known
