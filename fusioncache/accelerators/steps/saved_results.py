"""Results of attention that are saved once: as what is multiplied, of which backward takes a view.

    (out, ...) = flash_attention(q, k, v)
    t1 = permute(out, (0, 2, 1, 3))
    t2 = reshape(t1, (2, 64, 128))            a copy where out has its heads first
    t3 = linear(t2, weight)
    return ..., saved: (..., out, t2)         now: (..., t2)

    t4 = reshape(t2, (2, 64, 4, 32))          new in backward
    out = permute(t4, (0, 2, 1, 3))
    (dq, dk, dv) = flash_backward(..., out, ...)

Both have the same numbers, and torch's kernel for backward wants those of the copy: it made one more by itself. So a
layer keeps one result less, and backward copies none. No gradient lies otherwise: each lies as its query, key or value.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.accelerators.steps.views import PRODUCTS, RESHAPES, is_own, list_computed_with, read_permutation
from fusioncache.backends.bound_symbols import written_values
from fusioncache.transform.rewrite import deletes, derive, find_saved, save_instead, take_instead, unpack_instead

RESULTS = "results of attention saved twice"
"""What is taken out, as it is counted."""

_SWAPPED = (0, 2, 1, 3)
"""The order of dimensions with each position before its heads; the same leads back."""
_COPY = "contiguous"
_JOINS = RESHAPES | {"flatten", "view", _COPY}


@dataclass(frozen=True, slots=True)
class SavedResults:
    """What a backward trace must do, now that the forward trace saves results of attention once.

    Attributes:
        saved: the names of the values that were saved, in order.
        left: the proxies of the values that are saved now, in order.
        joined: by the name of each result what it is a view of.
        results: the proxies of the results, by name.
    """

    saved: tuple[str, ...]
    left: tuple[Any, ...]
    joined: Mapping[str, Any]
    results: Mapping[str, Any]


def save_once(trace: Any) -> tuple[Any, SavedResults | None]:
    """Returns a forward trace that saves each result of attention once, and what is done in its backward trace then.

    Args:
        trace: a final one that saves tensors for a backward trace. It stays as it is, with None, without such a result.
    """
    start = time.perf_counter()
    symbols = trace.bound_symbols
    saved = {proxy.name: proxy for proxy in find_saved(trace)}
    found = dict(find_saved_twice(symbols, saved))
    if not found:
        return trace, None
    left = {name: proxy for name, proxy in saved.items() if name not in found}
    left |= {joined.name: joined for joined in found.values()}
    results = SavedResults(tuple(saved), tuple(left.values()), found, {name: saved[name] for name in found})
    done = save_instead(symbols[-1], results.left)
    return derive(trace, [*symbols[:-1], done], "Results of attention saved once by fusioncache", start), results


def find_saved_twice(symbols: Sequence[Any], saved: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the names of results that need not be saved, each with what has the same numbers.

    No code outside can write into that, noticed by autograd or not: it is multiplied, and neither returned nor viewed.
    Sizes are compared for that, of which a program for several lengths is told: see ``families.py``.
    """
    attentions = [symbol for symbol in symbols if _is_flash_attention(symbol)]
    if not attentions or any(True for symbol in symbols for _ in written_values(symbol)):
        return
    users = _find_users(symbols)
    for attention in attentions:
        result = attention.flat_proxy_outs[0]
        joined = _find_joined(result, users) if result.name in saved and _is_of_numbers(result) else None
        if joined is not None and all(is_own(user, PRODUCTS) for user in users[joined.name]):
            yield result.name, joined


def _is_flash_attention(symbol: Any) -> bool:
    """Returns whether a bound symbol is the forward pass of Thunder's flash attention."""
    from fusioncache.thunder_adapter.accelerator_api import sdpaex

    return symbol.sym.executor is sdpaex.sdpa_ex and symbol.sym.id == sdpaex.sdpfa_gradfwd.id


def _find_users(symbols: Iterable[Any]) -> Mapping[str, Sequence[Any]]:
    """Returns by the name of each value what computes with it, or returns it; not what only saves it."""
    users: defaultdict[str, list[Any]] = defaultdict(list)
    for symbol in symbols:
        if deletes(symbol):
            continue
        for name in {proxy.name for proxy in list_computed_with(symbol)}:
            users[name].append(symbol)
    return users


def _find_joined(result: Any, users: Mapping[str, Sequence[Any]]) -> Any:
    """Returns what a result is once its positions are first and its heads joined; None if it is anything else, too."""
    swap = _find_only(users[result.name])
    if swap is None or read_permutation(swap) != _SWAPPED:
        return None
    value, is_joined = swap.output, False
    while (step := _find_only(users[value.name])) is not None and is_own(step, _JOINS):
        value = step.output
        *_, heads, size = swap.output.shape
        is_joined = is_joined or step.sym.name == _COPY or bool(value.shape[-1] == heads * size)
    return value if is_joined else None


def _find_only(symbols: Sequence[Any]) -> Any:
    return symbols[0] if len(symbols) == 1 else None


def _is_of_numbers(result: Any) -> bool:
    from fusioncache.thunder_adapter.api import Proxy

    return not any(isinstance(size, Proxy) for size in result.shape)


def view_results(trace: Any, results: SavedResults) -> Any:
    """Returns a backward trace that takes what is saved now, and views it where a result of attention is used.

    Raises:
        RuntimeError: if this is not the backward trace of that forward trace. Then it cannot run as it is either.
    """
    start = time.perf_counter()
    symbols = unpack_instead(trace.bound_symbols, results.saved, results.left)
    placed = list(_insert_views(trace, symbols, results))
    new = derive(trace, placed, "Results of attention viewed by fusioncache", start)
    new.args = take_instead(trace, results.left)
    return new


def _insert_views(trace: Any, symbols: Iterator[Any], results: SavedResults) -> Iterator[Any]:
    viewed = set[str]()
    for symbol in symbols:
        if deletes(symbol):
            continue
        for proxy in symbol.flat_proxy_args:
            if proxy.name in results.joined and proxy.name not in viewed:
                viewed.add(proxy.name)
                yield from _view(trace, results.joined[proxy.name], results.results[proxy.name])
        yield symbol


def _view(trace: Any, joined: Any, result: Any) -> Iterator[Any]:
    """Yields the bound symbols that make a result of attention, with its heads before positions, of what is joined."""
    from fusioncache.thunder_adapter.api import TensorProxy, torchex, tracectx

    shape = tuple(result.shape[dimension] for dimension in _SWAPPED)
    with tracectx(trace):
        positions_first = TensorProxy(like=result, shape=shape)
    yield torchex.reshape.bind(joined, shape, output=positions_first)
    yield torchex.permute.bind(positions_first, _SWAPPED, output=result)
