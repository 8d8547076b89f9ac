"""Products of two matrices by torch's function for them, which ``matmul`` calls once it has looked at dimensions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any

from fusioncache.lean.views import Leaner, is_own

MATRICES = "dimensions of a product looked at"

_MATMUL = frozenset({"matmul"})


def simplify_products(symbols: Iterable[Any]) -> Leaner:
    """Has each product of two matrices called by its own name."""
    taken = Counter[str]()
    return Leaner(tuple(_simplify(symbol, taken) for symbol in symbols), taken)


def _simplify(symbol: Any, taken: Counter[str]) -> Any:
    if not is_own(symbol, _MATMUL) or symbol.kwargs or [each.ndim for each in symbol.args] != [2, 2]:
        return symbol
    taken[MATRICES] += 1
    return symbol.from_bsym(sym=_find_mm(symbol.sym.executor))


@cache
def _find_mm(executor: Any) -> Any:
    """Returns a symbol for ``torch.mm``, for which the executor has none."""
    import torch
    from thunder.core.prims import matmul
    from thunder.core.symbol import Symbol

    return Symbol("mm", meta=matmul.meta, id="mm", executor=executor, _module=torch)
