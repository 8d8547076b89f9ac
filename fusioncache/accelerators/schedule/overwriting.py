"""Sums over ranks that are made in place: in the memory of a gradient that nothing else reads, without a copy of it.

    t7 = torch.matmul(t5, t6)                                t7 = torch.matmul(t5, t6)
    (f1, t8) = torch_all_reduce_prim_impl(t7, SUM, ...)      (f1, t8) = all_reduce_in_place(t7, SUM, ...)

Thunder copies each gradient, and has the ranks add up the copies. The same numbers are added up, by the same library. A
value is overwritten only if the collective is all that it is computed for, and if what computes it is known to give
memory of its own, in which nothing else lies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fusioncache.accelerators.schedule.averaging import divided_by, operation_of_torch
from fusioncache.accelerators.schedule.collectives import arguments_of
from fusioncache.backends.symbols import outputs_of
from fusioncache.transform.rewrite import rebind

_SUMS = frozenset({"torch_all_reduce_prim_impl", "all_reduce_average"})
_PRODUCT, _OF_EMBEDDING = "matmul", "torch.ops.aten.embedding_backward"
"""Operations of torch's whose result has memory of its own: a product of matrices, a gradient that is not sparse."""


def reduce_in_place(symbols: Sequence[Any]) -> list[Any]:
    """Returns bound symbols with sums over ranks made in place where they may be. There are no ``del`` statements."""
    makers = {proxy.name: symbol for symbol in symbols for proxy in outputs_of(symbol)}
    uses = Counter(name for symbol in symbols for name in {proxy.name for proxy in symbol.flat_proxy_args})
    return [
        rebind(symbol, all_reduce_in_place, symbol.args) if _may_overwrite(symbol, makers, uses) else symbol
        for symbol in symbols
    ]


def _may_overwrite(symbol: Any, makers: dict[str, Any], uses: Counter[str]) -> bool:
    if str(symbol.sym.id) not in _SUMS:
        return False
    given = arguments_of(symbol)
    if given["do_async"] is not True or given.get("skip_clone"):
        return False
    name, maker = given["a"].name, makers.get(given["a"].name)
    return maker is not None and uses[name] == 1 and _allocates(maker, name, given["group"].size())


def _allocates(maker: Any, name: str, ranks: int) -> bool:
    """Tells whether a bound symbol gives one tensor, in memory that is nothing else's.

    A region might give what it takes, or lay one result where another one is, unless it is the division of a gradient
    by the number of ranks and nothing else.
    """
    if [proxy.name for proxy in outputs_of(maker)] != [name]:
        return False
    if maker.sym.is_fusion:
        return ranks > 1 and divided_by(maker, ranks) is not None
    if getattr(maker.sym.executor, "name", None) != "torch":
        return False
    if maker.sym.name == _PRODUCT:
        return all(proxy.ndim == 2 for proxy in maker.flat_proxy_args)
    return maker.sym.name == _OF_EMBEDDING and maker.args[5:] == (False,)


def all_reduce_in_place(gradient: Any, op: Any, group: Any, do_async: bool, skip_clone: bool = False) -> Any:
    """Starts to add up a tensor, which all ranks get whole, where it lies; in a copy if it does not lie densely.

    Returns:
        What is waited for, and the tensor.
    """
    from torch.distributed import all_reduce

    output = make_writable(gradient, in_place=True)
    return all_reduce(output, operation_of_torch(op), group, async_op=True), output


def make_writable(gradient: Any, *, in_place: bool) -> Any:
    """Returns a tensor that ranks may overwrite: a copy, or if that is allowed the gradient itself if it is dense."""
    import torch

    return gradient if in_place and gradient.is_contiguous() else gradient.clone(memory_format=torch.contiguous_format)
