"""The tensors that leave a program, which stay tensors of their own whatever is left out.

What a program returns, or saves, may be told from others: it may be asked whether it is another tensor, a leaf of
autograd's graph, or has been detached. So no value takes the place of one that leaves. There are operations that return
what they were given, where they have nothing to do:

    t1 = permute(t0, (1, 0))                    is x again
    t2 = contiguous(t1)                         so this is t1 itself, which is a view of x, and x if t1 is left out
    return t2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.backends.symbols import leaves_of, symbol_name
from fusioncache.ir.ops import op_traits

NEW_VIEWS = frozenset({"permute", "transpose", "unsqueeze", "squeeze", "expand", "torch_slice_prim_impl"})
"""Views of torch's that are another tensor each time, also where they have nothing to do."""
PRODUCTS = frozenset({"matmul", "mm", "linear"})
"""What makes tensors whose elements lie in order without gaps, so that any reshape of these is a view."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """Which values of a program leave it.

    Attributes:
        held: the names of those that it returns or saves.
        passed: the names of those that may leave it all the same, as what an operation was given.
        inner: the names of those that the program makes, and that are no tensor that it was given, returns or saves.
    """

    held: frozenset[str]
    passed: frozenset[str]
    inner: frozenset[str]

    @classmethod
    def of(cls, symbols: Sequence[Any]) -> Leaving:
        """Reads what leaves a program of these bound symbols."""
        from fusioncache.thunder_adapter.api import PrimIDs

        returns = (symbol for symbol in symbols if symbol.sym.id is PrimIDs.RETURN)
        held = frozenset(proxy.name for symbol in returns for proxy in symbol.flat_proxy_args)
        passed = _find_passed(symbols, held)
        return cls(held, passed, _find_inner(symbols, held | passed))

    def may_replace(self, other: Any, value: Any) -> bool:
        """Tells whether a value may take the place of another one that is equal, and nobody outside sees that."""
        return other.name not in self.held and (other.name not in self.passed or value.name in self.inner)


def _find_passed(symbols: Sequence[Any], held: frozenset[str]) -> frozenset[str]:
    found = set(held)
    for symbol in reversed(symbols):
        if any(proxy.name in found for proxy in symbol.flat_proxy_outs) and not _gives_another(symbol):
            found |= {proxy.name for proxy in symbol.flat_proxy_args}
    return frozenset(found - held)


def _find_inner(symbols: Sequence[Any], outer: frozenset[str]) -> frozenset[str]:
    inner: set[str] = set()
    for symbol in symbols:
        given = {proxy.name for proxy in symbol.flat_proxy_args}
        if given and (given <= inner or _gives_another(symbol)):
            inner |= {proxy.name for proxy in symbol.flat_proxy_outs} - outer
    return frozenset(inner)


def _gives_another(symbol: Any) -> bool:
    """Tells whether an operation never returns the very tensor that it was given."""
    if symbol.sym.is_fusion or (
        getattr(symbol.sym.executor, "name", None) == "torch" and symbol.sym.name in NEW_VIEWS | PRODUCTS
    ):
        return True
    given = {proxy.name for proxy in symbol.flat_proxy_outs}
    makers = [leaf for leaf in leaves_of(symbol) if given & {proxy.name for proxy in leaf.flat_proxy_outs}]
    return bool(makers) and all(op_traits(symbol_name(leaf.sym) or "").allocates for leaf in makers)


def list_computed_with(symbol: Any) -> list[Any]:
    """Returns the values that a bound symbol computes with, or returns; not those that it only saves for backward."""
    from fusioncache.thunder_adapter.api import PrimIDs, Proxy, tree_flatten

    saves = symbol.sym.id is PrimIDs.RETURN and len(symbol.args) == 2 and type(symbol.args[0]) is dict
    if not saves:
        return list(symbol.flat_proxy_args)
    results, _saved = symbol.args
    return [leaf for leaf in tree_flatten(results)[0] if isinstance(leaf, Proxy)]
