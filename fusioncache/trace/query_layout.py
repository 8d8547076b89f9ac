"""Queries that a region writes with each position before its heads, so that nothing is copied around flash attention.

    [q, k, v] = fusion0(...)                          q lies as (rows, positions, heads, size) from now on,
    (out, ...) = flash_attention(q, k, v)             and with it the result, which torch lays out as its query,
    t1 = permute(out, (0, 2, 1, 3))
    t2 = reshape(t1, (rows, positions, -1))           so that this is a view. It was a copy,
    t3 = linear(t2, weight)
    ...
    (dq, dk, dv) = flash_backward(..., out, ...)      and torch made another one of the result here

Before, a region wrote queries with their heads first, as the model has them. Attention takes any order and computes the
same numbers. So do regions that compute each element by itself, while a sum may depend on the order in which a kernel
goes through memory: queries stay as they lie where a region adds up, and so do their gradients, in a copy.

A reshape that is a view is the memory of the result itself, which backward keeps in any case. So all of it is done only
where a program writes into nothing, and where the reshape is multiplied, and neither returned nor viewed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fusioncache.backends.symbols import outputs_of, symbol_name, written_values
from fusioncache.ir.ops import op_traits
from fusioncache.trace.collectives import leaves_of
from fusioncache.trace.lean.leaving import PRODUCTS, list_computed_with
from fusioncache.trace.lean.views import RESHAPES, is_own, read_permutation
from fusioncache.trace.rewrite import deletes, derive, free_numbers, fuse_like

QUERIES = "copies of what attention computes"
"""What is taken out, as it is counted."""

_POSITIONS_FIRST = (3, 1, 2, 0)
"""For each dimension of (rows, heads, positions, size) its place in memory, from the innermost one."""
_SWAPPED = (0, 2, 1, 3)
"""The order of dimensions with each position before its heads; the same leads back."""
_FLASH_MULTIPLE = 8
"""Heads of other sizes are copied to be padded."""
_COPY = "contiguous"
_JOINS = RESHAPES | {"flatten", "view", _COPY}
_UNORDERED = frozenset({"prims.amax", "prims.amin"})
"""What finds one among elements that may be equal, and yet not have the same bits."""


def put_positions_first(trace: Any) -> tuple[Any, frozenset[str]]:
    """Returns a forward trace whose queries lie with their positions first, and their names; else the same, and none.

    Args:
        trace: a final one, in which regions are fused calls.
    """
    start = time.perf_counter()
    symbols = [symbol for symbol in trace.bound_symbols if not deletes(symbol)]
    found = find_queries(symbols)
    if not found:
        return trace, frozenset()
    numbers = free_numbers((), trace)
    placed = [
        _write_positions_first(trace, symbol, found[place], next(numbers)) if place in found else symbol
        for place, symbol in enumerate(symbols)
    ]
    names = frozenset(query.name for queries in found.values() for query in queries)
    return derive(trace, placed, "Queries with positions first by fusioncache", start), names


def find_queries(symbols: Sequence[Any]) -> Mapping[int, Sequence[Any]]:
    """Returns the proxies of queries that may lie otherwise, by the place of the region that makes them.

    Sizes are compared for that, of which a program for several lengths is told: see ``program_families.py``.
    """
    attentions = [symbol for symbol in symbols if _is_forward(symbol)]
    if not attentions or any(True for symbol in symbols for _ in written_values(symbol)):
        return {}
    makers = {proxy.name: place for place, proxy in _list_made_by_regions(symbols)}
    users = _find_users(symbols)
    found: defaultdict[int, list[Any]] = defaultdict(list)
    for attention in attentions:
        query, result = attention.args[0], attention.flat_proxy_outs[0]
        place = makers.get(query.name)
        is_only_query = [proxy.name for proxy in attention.flat_proxy_args].count(query.name) == 1
        if place is None or not is_only_query or len(users[query.name]) != 1:
            continue
        if _has_two_orders(query) and computes_each_by_itself(symbols[place]) and _is_multiplied(result, users):
            found[place].append(query)
    return found


def leave_gradients(trace: Any, queries: frozenset[str]) -> Any:
    """Returns a backward trace in which the gradients of such queries lie as before, where that may make a difference.

    Args:
        trace: a final one.
        queries: the names of those that ``put_positions_first`` found in the forward trace.
    """
    start = time.perf_counter()
    symbols = [symbol for symbol in trace.bound_symbols if not deletes(symbol)]
    users = _find_users(symbols)
    changed = False
    placed: list[Any] = []
    for symbol in symbols:
        if not _is_backward(symbol) or symbol.args[1].name not in queries:
            placed.append(symbol)
            continue
        gradient = symbol.output[0]
        if all(user.sym.is_fusion and computes_each_by_itself(user) for user in users[gradient.name]):
            placed.append(symbol)
        else:
            changed = True
            placed += _copy_gradient(trace, symbol)
    return derive(trace, placed, "Gradients of queries as they lay by fusioncache", start) if changed else trace


def computes_each_by_itself(fusion: Any) -> bool:
    """Tells whether each element that a region computes has the same bits, in whichever order these are computed."""
    names = (symbol_name(leaf.sym) or "" for symbol in fusion.subsymbols for leaf in leaves_of(symbol))
    return not any(name in _UNORDERED or op_traits(name).adds_up or op_traits(name).random for name in names)


def _is_forward(symbol: Any) -> bool:
    from thunder.executors import sdpaex

    return symbol.sym.executor is sdpaex.sdpa_ex and symbol.sym.id == sdpaex.sdpfa_gradfwd.id


def _is_backward(symbol: Any) -> bool:
    from thunder.executors import sdpaex

    return symbol.sym.executor is sdpaex.sdpa_ex and symbol.sym.id == sdpaex.sdpfa_bwd.id


def _list_made_by_regions(symbols: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Yields what regions compute, each with the place of the region, but for regions that hand on what they take."""
    for place, symbol in enumerate(symbols):
        if symbol.sym.is_fusion and len(outputs := outputs_of(symbol)) == len(symbol.flat_proxy_outs):
            yield from ((place, proxy) for proxy in outputs)


def _find_users(symbols: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
    """Returns by the name of each value what computes with it, or returns it; not what only saves it."""
    users: defaultdict[str, list[Any]] = defaultdict(list)
    for symbol in symbols:
        if deletes(symbol):
            continue
        for name in {proxy.name for proxy in list_computed_with(symbol)}:
            users[name].append(symbol)
    return users


def _has_two_orders(query: Any) -> bool:
    """Tells whether it is another order in memory to have positions first, and attention takes a query as it lies."""
    from thunder.core.proxies import Proxy

    if any(isinstance(size, Proxy) for size in query.shape):
        return False
    _, heads, positions, size = query.shape
    return bool(heads != 1 and positions != 1 and size % _FLASH_MULTIPLE == 0)


def _is_multiplied(result: Any, users: Mapping[str, Sequence[Any]]) -> bool:
    """Tells whether a result has its positions put first and its heads joined, and then is only multiplied."""
    swap = _find_only(users[result.name])
    if swap is None or read_permutation(swap) != _SWAPPED:
        return False
    value, joined = swap.output, False
    while not (joined and all(is_own(user, PRODUCTS) for user in users[value.name])):
        step = _find_only(users[value.name])
        if step is None or not is_own(step, _JOINS):
            return False
        value = step.output
        joined = joined or step.sym.name == _COPY or value.shape[-1] == swap.output.shape[-1] * swap.output.shape[-2]
    return True


def _find_only(symbols: Sequence[Any]) -> Any:
    return symbols[0] if len(symbols) == 1 else None


def _write_positions_first(trace: Any, fusion: Any, queries: Sequence[Any], counter: int) -> Any:
    """Returns a region that writes these of its results in the other order."""
    from thunder.core import prims
    from thunder.core.proxies import TensorProxy, variableify
    from thunder.core.trace import tracectx

    with tracectx(trace):
        inner = {variableify(query): TensorProxy(like=query) for query in queries}
    operations = [symbol.from_bsym_swap_proxies(inner) for symbol in fusion.subsymbols]
    operations += [
        prims.stride_order.bind(inner[variableify(query)], _POSITIONS_FIRST, output=query) for query in queries
    ]
    return fuse_like(fusion, counter, fusion.args, outputs_of(fusion), operations)


def _copy_gradient(trace: Any, attention: Any) -> list[Any]:
    """Returns attention's backward pass, and the copy of a query's gradient that has its heads first."""
    import torch
    from thunder.core.proxies import TensorProxy
    from thunder.core.trace import tracectx
    from thunder.executors import torchex

    gradient, *others = attention.output
    with tracectx(trace):
        fresh = TensorProxy(like=gradient)
    copy = torchex.contiguous.bind(fresh, memory_format=torch.contiguous_format, output=gradient)
    return [attention.from_bsym(output=(fresh, *others), subsymbols=()), copy]
