"""Thunder's symbols: operations by name and names by operation, and what a bound symbol takes and returns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from fusioncache.ir.ops import op_traits

_NVFUSER_EXECUTOR = "thunder.executors.nvfuserex_impl"


def symbol_name(symbol: Any) -> str | None:
    """The name under which ``symbol_named`` finds this very Thunder symbol, or None if it is not a known one."""
    if symbol.id is None:
        return None
    by_id, by_name = _tables(_NVFUSER_EXECUTOR in sys.modules)
    name = by_id.get(symbol.id)
    return name if name is not None and by_name[name].meta is symbol.meta else None


def symbol_named(name: str) -> Any:
    """The Thunder symbol with this name, such as ``prims.add``.

    Raises:
        KeyError: if this Thunder has no such operation.
    """
    return _tables(_NVFUSER_EXECUTOR in sys.modules)[1][name]


@cache
def _tables(with_nvfuser: bool) -> tuple[dict[Any, str], dict[str, Any]]:
    symbols = sorted(_all_symbols(with_nvfuser), key=lambda pair: pair[0], reverse=True)
    # Of the aliases of one symbol the first in alphabetical order names it.
    return {symbol.id: name for name, symbol in symbols if symbol.id is not None}, dict(symbols)


def _all_symbols(with_nvfuser: bool) -> Iterator[tuple[str, Any]]:
    from fusioncache.thunder_adapter.api import Symbol, ltorch, prims

    for prefix, namespace in (("prims", vars(prims)), ("torch", vars(ltorch))):
        yield from ((f"{prefix}.{name}", value) for name, value in namespace.items() if isinstance(value, Symbol))
    if with_nvfuser:
        yield from ((f"nvfuser.{name}", symbol) for name, symbol in sys.modules[_NVFUSER_EXECUTOR].ex.opmap.items())


def argument_names(bound_symbol: Any) -> list[str]:
    """Returns the names of the values that a bound symbol takes."""
    return [proxy.name for proxy in bound_symbol.flat_proxy_args]


def result_names(bound_symbol: Any) -> list[str]:
    """Returns the names of the values that a bound symbol returns."""
    output = bound_symbol.output
    results = output if isinstance(output, (tuple, list)) else (output,)
    return [result.name for result in results if hasattr(result, "name")]


def outputs_of(fusion: Any) -> list[Any]:
    """Returns the proxies that a fused call defines, without the inputs that Thunder lists as they pass through."""
    inputs = set(argument_names(fusion))
    return [proxy for proxy in fusion.flat_proxy_outs if proxy.name not in inputs]


def flatten(bound_symbol: Any) -> list[Any]:
    """Returns the operations that a bound symbol consists of, as regions have them: nearly all are primitives."""
    symbol = bound_symbol.sym
    if symbol.is_prim or not bound_symbol.subsymbols or op_traits(symbol_name(symbol) or "").fusible:
        return [bound_symbol]
    return [primitive for inner in bound_symbol.subsymbols for primitive in flatten(inner)]


def leaves_of(symbol: Any) -> Iterator[Any]:
    """Yields the operations that a bound symbol consists of in the end, itself if it is one."""
    if not symbol.subsymbols:
        yield symbol
    for inner in symbol.subsymbols:
        yield from leaves_of(inner)


def may_write(bound_symbol: Any) -> bool:
    """Returns whether a bound symbol, or one that it consists of, may write into its arguments."""
    return any(True for _ in _writing(bound_symbol))


def written_values(bound_symbol: Any) -> Iterator[str]:
    """Yields the names of the values that a bound symbol, or one that it consists of, may write into."""
    for writing in _writing(bound_symbol):
        yield from argument_names(writing)


def _writing(bound_symbol: Any) -> Iterator[Any]:
    from fusioncache.thunder_adapter.api import OpTags

    symbol = bound_symbol.sym
    # Executors give operations implementations of their own under the same id.
    name = _tables(_NVFUSER_EXECUTOR in sys.modules)[0].get(symbol.id, symbol.name)
    if OpTags.IN_PLACE in (symbol.tags or ()) or op_traits(name).writes:
        yield bound_symbol
    for inner in bound_symbol.subsymbols:
        yield from _writing(inner)
