"""Linear layers and embeddings that are cut: column layers, row layers, and tables of which each rank has some rows."""

from __future__ import annotations

from typing import Any

from fusioncache.distributed.cut_values import CutValues
from fusioncache.distributed.cuts import Cut, CutError
from fusioncache.distributed.rank_symbols import rank_operator, rank_symbol


def cut_linear(values: CutValues, symbol: Any) -> bool:
    """Computes a part of a linear layer's result, or all of it.

    Raises:
        CutError: if layers are cut so that one does not fit what comes before it.
    """
    cut = values.cut_of(symbol.args[1])
    if cut is None:
        return _apply_to_rows(values, symbol)
    if cut.dim == 0:
        return _apply_column(values, symbol, cut)
    return _apply_row(values, symbol, cut)


def _apply_to_rows(values: CutValues, symbol: Any) -> bool:
    """Applies a whole layer to some of the rows."""
    taken, weight, bias = symbol.args
    cut = values.cut_of(taken)
    if cut is None or cut.dim == taken.ndim - 1:
        return False
    now = {taken.name: values.now(taken)} | {one.name: values.enter(one) for one in (weight, bias) if one is not None}
    return values.compute(symbol, now, cut)


def _apply_column(values: CutValues, symbol: Any, cut: Cut) -> bool:
    """Gives each rank some features of the result; all of them to each, where the layer is a gathered one."""
    taken, weight, bias = symbol.args
    (given,) = symbol.flat_proxy_outs
    before = values.cut_of(taken)
    if before is None:
        whole = values.enter(taken)
    elif before.of_rows:
        whole = values.gather(taken, partial=True)
    else:
        raise CutError(
            f"{cut.layer} takes what {before.layer} gives, of which each rank has a part: it must be a row layer"
        )
    own = values.now(bias) if bias is None or values.cut_of(bias) else values.own_part(bias, 0)
    part = symbol.sym(whole, values.now(weight), own)
    if cut.is_gathered:
        values.give(given, rank_symbol("gather_parts")(part, values.group, given.ndim - 1), None)
    else:
        values.give(given, part, Cut(given.ndim - 1, cut.layer))
    return True


def _apply_row(values: CutValues, symbol: Any, cut: Cut) -> bool:
    """Adds up over ranks what each makes of the features that it has; adds the bias once."""
    from fusioncache.thunder_adapter.api import ltorch

    taken, weight, bias = symbol.args
    (given,) = symbol.flat_proxy_outs
    before = values.cut_of(taken)
    if before is None or before.dim != taken.ndim - 1:
        why = "is whole on each rank" if before is None else f"is cut along dimension {before.dim} by {before.layer}"
        raise CutError(
            f"{cut.layer} is a row layer, and what it takes {why}: its features have to be those of column layers"
        )
    result, found = _add_up(values, symbol.sym(values.now(taken), values.now(weight), None), cut.layer)
    if bias is not None:
        result = ltorch.add(result, values.enter(bias) if found else values.now(bias))
    values.give(given, result, found)
    return True


def _add_up(values: CutValues, partial: Any, layer: str) -> tuple[Any, Cut | None]:
    """Returns the sum over ranks, and how it is cut: along the sequence if that was asked for and ranks divide it."""
    rows = partial.ndim - 2
    if values.of_rows and rows >= 0 and partial.shape[rows] % values.ranks == 0:
        return rank_symbol("sum_into_parts")(partial, values.group, rows), Cut(rows, layer, of_rows=True)
    return rank_symbol("sum_over_ranks")(partial, values.group, 0), None


def cut_embedding(values: CutValues, symbol: Any) -> bool:
    """Looks up what is in this rank's part of a table, takes zeros for the rest, and adds up over ranks."""
    from fusioncache.thunder_adapter.api import ltorch

    tokens, table, padding, norm, *_ = symbol.args
    cut = values.cut_of(table)
    if cut is None or cut.dim != 0 or values.cut_of(tokens) or padding is not None or norm is not None:
        return False
    (given,) = symbol.flat_proxy_outs
    part = values.now(table)
    place = ltorch.sub(
        values.now(tokens), ltorch.mul(rank_operator()(values.group, tokens.device.device_str()), part.shape[0])
    )
    elsewhere = ltorch.logical_or(ltorch.lt(place, 0), ltorch.ge(place, part.shape[0]))
    found = ltorch.embedding(ltorch.masked_fill(place, elsewhere, 0), part)
    found = ltorch.masked_fill(found, ltorch.unsqueeze(elsewhere, -1), 0.0)
    values.give(given, *_add_up(values, found, cut.layer))
    return True
