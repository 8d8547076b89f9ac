"""Queries that a region writes with each position before its heads, so that attention's result need not be copied.

    [q, k, v] = fusion0(...)                          q lies as (rows, positions, heads, size) from now on,
    (out, ...) = flash_attention(q, k, v)             and with it the result, which torch lays out as its query,
    t1 = permute(out, (0, 2, 1, 3))
    t2 = reshape(t1, (rows, positions, -1))           so that this is a view. It was a copy,
    t3 = linear(t2, weight)

Before, a region wrote queries with their heads first, as the model has them. Attention takes any order and computes the
same numbers. So do regions that compute each element by itself, while a sum may depend on the order in which a kernel
goes through memory: queries stay as they lie where a region adds up.

What is multiplied lies as before, whether it was a copy or a view: contiguous. A view is so where queries have rows
outermost, as all have whose region takes what was multiplied, and leaves the first dimension where it is. Nobody has
what is multiplied, as it is the memory of another value now.

All of it is done in programs that compute no gradients: a query's gradient lies as its query, and with it what backward
adds up, and what it returns. What those save twice is saved once: see ``saved_results.py``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fusioncache.accelerators.steps.leaving import PRODUCTS, list_computed_with
from fusioncache.accelerators.steps.outermost import ONE_ROW, computes_each_by_itself, find_outermost
from fusioncache.accelerators.steps.views import RESHAPES, is_own, read_permutation
from fusioncache.backends.symbols import outputs_of, written_values
from fusioncache.transform.rewrite import deletes, derive, free_numbers, fuse_like

QUERIES = "copies of attention results"
"""What is taken out, as it is counted."""

_POSITIONS_FIRST = (3, 1, 2, 0)
"""For each dimension of (rows, heads, positions, size) its place in memory, from the innermost one."""
SWAPPED = (0, 2, 1, 3)
"""The order of dimensions with each position before its heads; the same leads back."""
_FLASH_MULTIPLE = 8
"""Heads of other sizes are copied to be padded."""
_COPY = "contiguous"
_JOINS = RESHAPES | {"flatten", "view", _COPY}


def put_positions_first(trace: Any) -> tuple[Any, int]:
    """Returns a trace whose queries lie with their positions first, and of how many that is new; else the same, and 0.

    Args:
        trace: a final one that computes no gradients, in which regions are fused calls.
    """
    start = time.perf_counter()
    symbols = [symbol for symbol in trace.bound_symbols if not deletes(symbol)]
    found = find_queries(symbols)
    if not found:
        return trace, 0
    numbers = free_numbers((), trace)
    placed = [
        _write_positions_first(trace, symbol, found[place], next(numbers)) if place in found else symbol
        for place, symbol in enumerate(symbols)
    ]
    return derive(trace, placed, "Queries with positions first by fusioncache", start), sum(map(len, found.values()))


def find_queries(symbols: Sequence[Any]) -> Mapping[int, Sequence[Any]]:
    """Returns the proxies of queries that may lie otherwise, by the place of the region that makes them.

    Sizes are compared for that, of which a program for several lengths is told: see ``program_families.py``.
    """
    attentions = [symbol for symbol in symbols if is_flash_attention(symbol)]
    if not attentions or any(True for symbol in symbols for _ in written_values(symbol)):
        return {}
    makers = {proxy.name: place for place, proxy in _list_made_by_regions(symbols)}
    users = find_users(symbols)
    outermost = find_outermost(symbols)
    found: defaultdict[int, list[Any]] = defaultdict(list)
    for attention in attentions:
        query, result = attention.args[0], attention.flat_proxy_outs[0]
        place = makers.get(query.name)
        is_only_query = [proxy.name for proxy in attention.flat_proxy_args].count(query.name) == 1
        if place is None or not is_only_query or len(users[query.name]) != 1:
            continue
        if outermost.get(query.name) not in (0, ONE_ROW):
            continue
        if _has_two_orders(query) and computes_each_by_itself(symbols[place]) and _is_multiplied(result, users):
            found[place].append(query)
    return found


def is_flash_attention(symbol: Any) -> bool:
    """Tells whether a bound symbol is the forward pass of Thunder's flash attention."""
    from fusioncache.thunder_adapter.accelerator_api import sdpaex

    return symbol.sym.executor is sdpaex.sdpa_ex and symbol.sym.id == sdpaex.sdpfa_gradfwd.id


def find_users(symbols: Iterable[Any]) -> Mapping[str, Sequence[Any]]:
    """Returns by the name of each value what computes with it, or returns it; not what only saves it."""
    users: defaultdict[str, list[Any]] = defaultdict(list)
    for symbol in symbols:
        if deletes(symbol):
            continue
        for name in {proxy.name for proxy in list_computed_with(symbol)}:
            users[name].append(symbol)
    return users


def _list_made_by_regions(symbols: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Yields what regions compute, each with the place of the region, but for regions that hand on what they take."""
    for place, symbol in enumerate(symbols):
        if symbol.sym.is_fusion and len(outputs := outputs_of(symbol)) == len(symbol.flat_proxy_outs):
            yield from ((place, proxy) for proxy in outputs)


def _has_two_orders(query: Any) -> bool:
    """Tells whether it is another order in memory to have positions first, and attention takes a query as it lies."""
    from fusioncache.thunder_adapter.api import Proxy

    if any(isinstance(size, Proxy) for size in query.shape):
        return False
    _, heads, positions, size = query.shape
    return bool(heads != 1 and positions != 1 and size % _FLASH_MULTIPLE == 0)


def _is_multiplied(result: Any, users: Mapping[str, Sequence[Any]]) -> bool:
    """Tells whether a result has its positions put first and its heads joined, and then is only multiplied."""
    joined = find_joined(result, users)
    return joined is not None and all(is_own(user, PRODUCTS) for user in users[joined.name])


def find_joined(result: Any, users: Mapping[str, Sequence[Any]]) -> Any:
    """Returns what a result is once its positions are first and its heads joined; None if it is anything else, too."""
    swap = _find_only(users[result.name])
    if swap is None or read_permutation(swap) != SWAPPED:
        return None
    value, is_joined = swap.output, False
    while (step := _find_only(users[value.name])) is not None and is_own(step, _JOINS):
        value = step.output
        *_, heads, size = swap.output.shape
        is_joined = is_joined or step.sym.name == _COPY or bool(value.shape[-1] == heads * size)
    return value if is_joined else None


def _find_only(symbols: Sequence[Any]) -> Any:
    return symbols[0] if len(symbols) == 1 else None


def _write_positions_first(trace: Any, fusion: Any, queries: Sequence[Any], counter: int) -> Any:
    """Returns a region that writes these of its results in the other order."""
    from fusioncache.thunder_adapter.api import TensorProxy, prims, tracectx, variableify

    with tracectx(trace):
        inner = {variableify(query): TensorProxy(like=query) for query in queries}
    operations = [symbol.from_bsym_swap_proxies(inner) for symbol in fusion.subsymbols]
    operations += [
        prims.stride_order.bind(inner[variableify(query)], _POSITIONS_FIRST, output=query) for query in queries
    ]
    return fuse_like(fusion, counter, fusion.args, outputs_of(fusion), operations)
