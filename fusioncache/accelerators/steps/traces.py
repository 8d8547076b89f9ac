"""The pass over a final trace that leaves out what changes nothing.

Products of two matrices are called by torch's function for them, which ``matmul`` calls once it looked at dimensions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from fusioncache.accelerators.steps.masks import find_masks, share_masks
from fusioncache.accelerators.steps.views import Leaner, is_own, list_unchanging, simplify_views
from fusioncache.accelerators.steps.writes import simplify_writes
from fusioncache.backends.symbols import written_values

MATRICES = "shape queries of matrix products"

_MATMUL = frozenset({"matmul"})


def simplify(trace: Any) -> Leaner:
    """Returns the bound symbols of a final trace without what changes nothing, and how much that was.

    The same tensors come out, bit for bit and in the same layout.
    """
    from fusioncache.thunder_adapter.api import PrimIDs

    # What lets go of values is made anew.
    symbols = tuple(symbol for symbol in trace.bound_symbols if symbol.sym.id is not PrimIDs.DEL)
    writes = any(True for symbol in symbols for _ in written_values(symbol))
    views = simplify_writes(symbols) if writes else simplify_views(symbols)
    masks = share_masks(trace, views.symbols)
    products = simplify_products(masks.symbols)
    taken: Mapping[str, int] = {**views.taken, **masks.taken, **products.taken}
    return Leaner(products.symbols, taken)


def look_at_sizes(trace: Any) -> None:
    """Compares the sizes in a final trace that ``simplify`` goes by, so that whoever watches them is told."""
    for _ in (*list_unchanging(trace.bound_symbols), *find_masks(trace.bound_symbols)):
        pass


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

    from fusioncache.thunder_adapter.api import Symbol, prims

    return Symbol("mm", meta=prims.matmul.meta, id="mm", executor=executor, _module=torch)
