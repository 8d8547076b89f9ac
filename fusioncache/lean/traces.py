"""The pass over a final trace that leaves out what changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusioncache.backends.symbols import written_values
from fusioncache.lean.products import simplify_products
from fusioncache.lean.views import Leaner, list_unchanging, simplify_views


def simplify(trace: Any) -> Leaner:
    """Returns the bound symbols of a final trace without what changes nothing, and how much that was.

    The same tensors come out, bit for bit and in the same layout.
    """
    from thunder.core.prims import PrimIDs

    # What lets go of values is made anew.
    symbols = tuple(symbol for symbol in trace.bound_symbols if symbol.sym.id is not PrimIDs.DEL)
    writes = any(True for symbol in symbols for _ in written_values(symbol))
    views = Leaner(symbols, {}) if writes else simplify_views(symbols)
    products = simplify_products(views.symbols)
    taken: Mapping[str, int] = {**views.taken, **products.taken}
    return Leaner(products.symbols, taken)


def look_at_sizes(trace: Any) -> None:
    """Compares the sizes in a final trace that ``simplify`` goes by, so that whoever watches them is told."""
    for _ in list_unchanging(trace.bound_symbols):
        pass
