"""Programs that write into memory, without what is there only because Thunder wrote otherwise.

    (t2, t3) = update_aliases((cache, t1))              the same tensors by other names, so that reads keep their order
    t4 = write_rows_(t2, -2, position, rows)
    t5 = copy_(t4, t2, grad_enabled=False)              what was written into, copied onto itself

Here the order is that of the statements, so the names are not needed. What ``write_rows_`` returns is what it wrote
into, and copying that onto itself does nothing: see ``row_writes.py`` for why it is there. What leaves a program is the
same tensor by another name. Programs that save anything for backward stay as they are, since backward knows it by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fusioncache.accelerators.steps.row_writes import NAME, keeps_order
from fusioncache.accelerators.steps.views import Leaner, Swaps, is_torchs, skip_views

NAMES, COPIES = "names for written memory", "copies of what rows are written into"

_RENAMING, _COPY, _WRITE = frozenset({"update_aliases"}), frozenset({"copy_"}), frozenset({NAME})


def simplify_writes(symbols: Sequence[Any]) -> Leaner:
    """Takes names, copies and views out of the bound symbols of a program that writes, and counts them."""
    from fusioncache.thunder_adapter.api import get_compile_data

    compiled = get_compile_data()
    if _saves(symbols[-1]) or not (compiled is None or keeps_order(compiled)):
        return Leaner(tuple(symbols), {})
    swaps, taken, written = Swaps(), Counter[str](), dict[str, str]()
    kept = []
    for original in symbols:
        symbol = swaps.apply(original)
        if is_torchs(symbol, _RENAMING):
            taken[NAMES] += 1
            for new, old in zip(symbol.output, symbol.args[0], strict=True):
                swaps.add(new, old)
        elif is_torchs(symbol, _COPY) and written.get(symbol.args[0].name) == symbol.args[1].name:
            taken[COPIES] += 2
            swaps.add(symbol.output, symbol.args[0])
        else:
            kept.append(symbol)
        if is_torchs(symbol, _WRITE):
            written[symbol.output.name] = symbol.args[0].name
    views = skip_views(kept)
    return Leaner(views.symbols, {**taken, **views.taken})


def _saves(result: Any) -> bool:
    """Tells whether what a program returns is for a backward pass, or for one before it."""
    from fusioncache.thunder_adapter.api import PrimIDs, tree_flatten

    if result.sym.id is not PrimIDs.RETURN or not isinstance(result.args[0], dict):
        return True
    return bool(tree_flatten(result.args[1:])[0])
