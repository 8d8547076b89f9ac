"""Which dimension of a trace's values is outermost in memory for sure, whichever compiler makes them.

A compiler may give a result the order of its operands, or write it in order of its dimensions. So operands have to
agree on which is outermost. What a trace is given may lie in any order, but for a first dimension of one element.

    t0 = linear(x, weight)          (2, 64, 384)           0: products are written in order
    t1 = reshape(t0, ...)           (2, 64, 3, 4, 32)      0
    t2 = transpose(t1, ...)         (3, 2, 4, 64, 32)      1
    t3 = squeeze(t2[:1], 0)         (2, 4, 64, 32)         0
    t4 = mul(t3, cos)               (2, 4, 64, 32)         0, as cos has one row
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from fusioncache.backends.symbols import leaves_of, symbol_name
from fusioncache.ir.ops import RESHAPE, op_traits
from fusioncache.transform.rewrite import deletes

ONE_ROW = -1
"""In place of the number of a dimension: the first one has one element, or repeats one."""

_WRITTEN = frozenset({"prims.cat", "prims.full", "prims.iota", "prims.pad"})
"""Operations that are not called elementwise, each of whose elements is an operand's, or the same in any order. Some
compilers write them in order of their dimensions, whatever the order of their operands is."""
_SLICE = "prims.slice_prim"
_PRODUCTS = frozenset({"prims.linear", "prims.matmul"})


def find_outermost(symbols: Iterable[Any]) -> Mapping[str, int]:
    """Returns by the name of a value its dimension that is outermost in memory, or ``ONE_ROW``; not where unknown."""
    found: dict[str, int] = {}
    for leaf in _list_leaves(symbols):
        for proxy in leaf.flat_proxy_args:
            if proxy.name not in found:
                _note(proxy, None, found)
        outermost = _find(leaf, found)
        for proxy in leaf.flat_proxy_outs:
            _note(proxy, outermost, found)
    return found


def computes_each_by_itself(fusion: Any) -> bool:
    """Tells whether each element that a region computes has the same bits, in whichever order these are computed."""
    return all(_is_alone(symbol_name(leaf.sym) or "") for leaf in _list_leaves(fusion.subsymbols))


def _is_alone(name: str) -> bool:
    return op_traits(name).elementwise or name in _WRITTEN or name == _SLICE


def _list_leaves(symbols: Iterable[Any]) -> Iterator[Any]:
    for symbol in symbols:
        if symbol.sym.is_fusion:
            yield from _list_leaves(symbol.subsymbols)
        elif not deletes(symbol):
            yield from leaves_of(symbol)


def _note(value: Any, outermost: int | None, found: dict[str, int]) -> None:
    """Notes what is known of a value. Where a dimension of one element lies nobody can tell."""
    from fusioncache.thunder_adapter.api import Proxy, TensorProxy

    if not isinstance(value, TensorProxy) or any(isinstance(size, Proxy) for size in value.shape):
        return
    if value.ndim and outermost not in (None, ONE_ROW) and value.shape[outermost] != 1:
        found[value.name] = outermost
    elif outermost == ONE_ROW or value.ndim == 0 or value.shape[0] == 1:
        found[value.name] = ONE_ROW


def _find(leaf: Any, found: Mapping[str, int]) -> int | None:
    name = symbol_name(leaf.sym) or ""
    if name in _PRODUCTS:
        return 0
    rule = _RULES.get(name)
    if rule is not None:
        return rule(leaf, found.get(leaf.args[0].name))
    if not _is_alone(name):
        return None
    agreed = _agree(leaf, found)
    return agreed if name not in _WRITTEN or agreed in (0, ONE_ROW) else None


def _agree(leaf: Any, found: Mapping[str, int]) -> int | None:
    from fusioncache.thunder_adapter.api import TensorProxy

    known = {found.get(proxy.name) for proxy in leaf.flat_proxy_args if isinstance(proxy, TensorProxy)}
    if known == {0, ONE_ROW}:
        return 0
    return known.pop() if len(known) == 1 else None if known else 0


def _transpose(leaf: Any, source: int | None) -> int | None:
    order = tuple(leaf.args[1])
    if source == ONE_ROW:
        return ONE_ROW if order[0] == 0 else None
    return None if source is None else order.index(source)


def _squeeze(leaf: Any, source: int | None) -> int | None:
    gone = tuple(leaf.args[1])
    if source is None or max(source, 0) in gone:
        return None
    return source if source == ONE_ROW else source - sum(dimension < source for dimension in gone)


def _broadcast(leaf: Any, source: int | None) -> int | None:
    """What is repeated has no order in memory; it may become outermost if it comes before what was."""
    value, shape, places = leaf.args[0], tuple(leaf.args[1]), tuple(leaf.args[2])
    if source is not None and source != ONE_ROW:
        place = places[source]
        kept = [each for each, size in zip(places, value.shape, strict=True) if shape[each] == size]
        if set(range(place + 1)) <= set(kept):
            return place
    return ONE_ROW if source == ONE_ROW or 0 not in places else None


def _reshape(leaf: Any, source: int | None) -> int | None:
    # One row may be taken apart, and then the outermost dimension is another one.
    return 0 if source == 0 else None


_RULES: Mapping[str, Callable[[Any, int | None], int | None]] = MappingProxyType(
    {
        "prims.transpose": _transpose,
        "prims.squeeze": _squeeze,
        "prims.broadcast_in_dim": _broadcast,
        RESHAPE: _reshape,
    }
)
