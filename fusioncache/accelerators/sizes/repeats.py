"""Shortens a trace that repeats a block, for passes whose comparisons of sizes are recorded.

Passes make the same comparisons for each of many equal blocks, so that a trace with few of them has the same guards.
``record_pass_guards`` tests each time that the guards do not depend on the number of blocks.

A block may be left out if it differs from the block before it only in its inputs: results of the block before, and
parameters of the same form. No other block, and nothing outside of the blocks, may use its parameters, and only the
next block its results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.accelerators.layers.block_replay import describe_value
from fusioncache.accelerators.sizes.sizes import SYMBOLIC, express
from fusioncache.thunder_adapter import api
from fusioncache.thunder_adapter.api import Proxy, devices, dtypes

_PLAIN = (bool, int, float, complex, str, bytes, type(None), devices.Device, dtypes.dtype)

type _Place = tuple[int, int]
"""The first place of a proxy in a trace: the position of a bound symbol, and the number among its proxies."""

FEWEST = 12
"""The least number of equal blocks of which some are left out."""


def shorten(trace: Any, count: int) -> Any:
    """Returns the trace with this number of the blocks of each repeated part; the trace itself if it repeats nothing.

    Args:
        trace: of computations.
        count: at least 2, and less than ``FEWEST``: the first blocks and the last one are left.
    """
    while (repeats := _find_repeats(trace)) is not None:
        trace = repeats.keep(count)
    return trace


@dataclass(frozen=True, slots=True, eq=False)
class _Repeats:
    """A part of a trace that repeats a block.

    Attributes:
        trace: the trace.
        start: the position of the first bound symbol of the first block.
        length: the number of bound symbols of a block.
        count: the number of blocks.
    """

    trace: Any
    start: int
    length: int
    count: int

    def keep(self, count: int) -> Any:
        """Returns the trace with the first blocks and the last one, ``count`` in all."""
        symbols, end = self.trace.bound_symbols, self.start + self.count * self.length
        first, last = self.start + (count - 1) * self.length, end - self.length
        pairs = zip(symbols[last - self.length : last], symbols[first - self.length : first], strict=True)
        earlier = {proxy.name for symbol in symbols[: last - self.length] for proxy in _list_proxies(symbol)}
        renamed = {  # results only: Thunder would rename a replacement once more if it had another name itself
            api.variableify(old): new
            for dropped, kept in pairs
            for old, new in zip(_list_proxies(dropped), _list_proxies(kept), strict=True)
            if old.name not in earlier
        }
        shorter = api.from_trace(self.trace)
        shorter.names = set(self.trace.names)  # passes on it add names, which must stay free in the whole trace
        shorter.bound_symbols = [
            *symbols[:first],
            *(each.from_bsym_swap_proxies(renamed) for each in symbols[last:end]),
            *symbols[end:],
        ]
        return shorter


def _find_repeats(trace: Any) -> _Repeats | None:
    """Returns the largest part of a trace with at least ``FEWEST`` blocks; None if some of them may not be left out."""
    numbers: dict[Any, int] = {}
    symbols = trace.bound_symbols
    inputs = sum(each.sym.id is api.PrimIDs.UNPACK_TRIVIAL for each in symbols)  # they come first
    forms = [numbers.setdefault(_describe(each), len(numbers)) for each in symbols[inputs:]]
    runs = [_find_run(forms, length) for length in range(1, len(forms) // FEWEST + 1)]
    long = [_Repeats(trace, inputs + start, length, count) for start, length, count in runs if count >= FEWEST]
    found = max(long, key=lambda each: (each.length * each.count, -each.length), default=None)
    return found if found is not None and _are_alike(found) else None


def _find_run(forms: Sequence[int], length: int) -> tuple[int, int, int]:
    """Returns the start, the length and the number of the most blocks of this length that follow each other."""
    best = start = 0
    longest = 0
    for position in range(len(forms) - length):
        if forms[position] != forms[position + length]:
            start = position + 1
        elif position + 1 - start > longest:
            longest, best = position + 1 - start, start
    return best, length, longest // length + 1


def _are_alike(repeats: _Repeats) -> bool:
    """True if each block from the second on does what the second does, and later symbols use the last block only."""
    symbols, start, length = repeats.trace.bound_symbols, repeats.start, repeats.length
    blocks = range(start, start + repeats.count * length, length)
    places: dict[str, _Place] = {}
    users: dict[str, set[int]] = {}
    for position, symbol in enumerate(symbols):
        for number, proxy in enumerate(_list_proxies(symbol)):
            places.setdefault(proxy.name, (position, number))
            if symbol.sym.id is not api.PrimIDs.UNPACK_TRIVIAL:
                users.setdefault(proxy.name, set()).add((position - start) // length)

    def is_own(number: int, name: str) -> bool:
        return users[name] == {number} and symbols[places[name][0]].sym.id is api.PrimIDs.UNPACK_TRIVIAL

    used_later = {name for name, numbers in users.items() if max(numbers) >= repeats.count}
    if any(start <= places[name][0] < blocks[-1] for name in used_later):
        return False
    links, inputs = zip(*(_link(symbols, block, length, places) for block in blocks[1:]), strict=True)
    return links.count(links[0]) == len(links) and all(
        all(places[name][0] < start for name in names)
        and (len(set(names)) == 1 or all(is_own(number, name) for number, name in enumerate(names, 1)))
        for names in zip(*inputs, strict=True)
    )


def _link(
    symbols: Sequence[Any], start: int, length: int, places: Mapping[str, _Place]
) -> tuple[list[tuple[int | None, int]], list[str]]:
    """Returns the links of a block, and the names of its inputs from outside of it and of the block before.

    A link says where a proxy comes from: its place relative to the block's start, or None and the number of an input.
    """
    links: list[tuple[int | None, int]] = []
    inputs: dict[str, int] = {}
    for symbol in symbols[start : start + length]:
        for proxy in _list_proxies(symbol):
            position, number = places[proxy.name]
            is_near = position >= start - length
            links.append((position - start, number) if is_near else (None, inputs.setdefault(proxy.name, len(inputs))))
    return links, list(inputs)


def _list_proxies(symbol: Any) -> Iterator[Any]:
    """Yields the proxies of a bound symbol and its subsymbols, in an order that is the same for equal forms."""
    yield from symbol.flat_proxy_args
    for each in symbol.subsymbols:
        yield from _list_proxies(each)
    yield from symbol.flat_proxy_outs


def _describe(symbol: Any) -> tuple[Any, ...]:
    """Returns a description of a bound symbol that depends on no proxy's name."""
    leaves, spec = symbol.flat_args_and_spec
    parts = tuple(map(_describe_leaf, (*leaves, *symbol.flat_outs)))
    tags = frozenset(symbol.tags)
    return id(symbol.sym), spec, tags, id(symbol._executor), parts, tuple(map(_describe, symbol.subsymbols))


def _describe_leaf(leaf: Any) -> Any:
    if type(leaf) in SYMBOLIC:
        return express(leaf)
    if isinstance(leaf, Proxy):  # sizes are not compared: that would be recorded
        return tuple(tuple(map(express, part)) if type(part) is tuple else part for part in describe_value(leaf))
    return type(leaf), repr(leaf) if isinstance(leaf, _PLAIN) else id(leaf)
