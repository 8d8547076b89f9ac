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

from fusioncache.backends.symbols import symbol_name
from fusioncache.ir.ops import RESHAPE, op_traits
from fusioncache.trace.collectives import leaves_of
from fusioncache.trace.rewrite import deletes

ONE_ROW = -1
"""In place of the number of a dimension: the first one has one element, or repeats one."""

_PICKS = frozenset({"prims.cat", "prims.full", "prims.iota", "prims.pad", "prims.slice_prim"})
"""Operations that are not called elementwise, each of whose elements is an operand's, or the same in any order."""
_PRODUCTS = frozenset({"prims.linear", "prims.matmul"})


def find_outermost(symbols: Iterable[Any]) -> Mapping[str, int]:
    """Returns by the name of a value its dimension that is outermost in memory, or ``ONE_ROW``; not where unknown."""
    found: dict[str, int] = {}
    for leaf in _list_leaves(symbols):
        for proxy in leaf.flat_proxy_args:
            _note_one_row(proxy, found)
        outermost = _find(leaf, found)
        for proxy in leaf.flat_proxy_outs:
            if outermost is not None:
                found[proxy.name] = outermost
            _note_one_row(proxy, found)
    return found


def computes_each_by_itself(fusion: Any) -> bool:
    """Tells whether each element that a region computes has the same bits, in whichever order these are computed."""
    return all(_is_alone(symbol_name(leaf.sym) or "") for leaf in _list_leaves(fusion.subsymbols))


def _is_alone(name: str) -> bool:
    return op_traits(name).elementwise or name in _PICKS


def _list_leaves(symbols: Iterable[Any]) -> Iterator[Any]:
    for symbol in symbols:
        if symbol.sym.is_fusion:
            yield from _list_leaves(symbol.subsymbols)
        elif not deletes(symbol):
            yield from leaves_of(symbol)


def _note_one_row(value: Any, found: dict[str, int]) -> None:
    if value.name not in found and _has_one_row(value):
        found[value.name] = ONE_ROW


def _has_one_row(value: Any) -> bool:
    from thunder.core.proxies import Proxy, TensorProxy

    if not isinstance(value, TensorProxy):
        return False
    rows = value.shape[0] if value.ndim else 1
    return not isinstance(rows, Proxy) and bool(rows == 1)


def _find(leaf: Any, found: Mapping[str, int]) -> int | None:
    name = symbol_name(leaf.sym) or ""
    if name in _PRODUCTS:
        return 0
    rule = _RULES.get(name)
    if rule is not None:
        return rule(leaf, found.get(leaf.args[0].name))
    return _agree(leaf, found) if _is_alone(name) else None


def _agree(leaf: Any, found: Mapping[str, int]) -> int | None:
    from thunder.core.proxies import TensorProxy

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
    places = tuple(leaf.args[2])
    if 0 not in places:
        return ONE_ROW if source in (None, ONE_ROW) else places[source]
    return source if source in (None, ONE_ROW) else places[source]


def _reshape(leaf: Any, source: int | None) -> int | None:
    # One row may be taken apart, and then the outermost dimension is another one.
    return 0 if source == 0 and not _has_one_row(leaf.args[0]) else None


_RULES: Mapping[str, Callable[[Any, int | None], int | None]] = MappingProxyType(
    {
        "prims.transpose": _transpose,
        "prims.squeeze": _squeeze,
        "prims.broadcast_in_dim": _broadcast,
        RESHAPE: _reshape,
    }
)
