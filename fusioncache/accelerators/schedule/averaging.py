"""Averages made by the collective itself: between two ranks over NCCL a gradient needs no division of its own.

Thunder divides each gradient by the number of ranks, in a kernel that does nothing else, and then adds up. NCCL's
average of two ranks multiplies what each of them sends by a half, and adds up: the same sums of the same halves, and no
sum that overflows between. A half has the same bits as the number it is of, but for its exponent, so that nothing is
rounded and it does not matter how: except where the half is smaller than the smallest normal number. There a library
rounds once instead of twice, or takes halves for zero, and the sum may differ: by its last bit, or in bfloat16 by up to
twice that number. Of float16 that is anything below 1.2e-4, as gradients often are, so that its gradients are divided
as before. Of the others it is 2.4e-38.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fusioncache.accelerators.schedule.calls import Kind
from fusioncache.accelerators.schedule.collectives import arguments_of, check_effects, kind_of
from fusioncache.backends.symbols import leaves_of, outputs_of
from fusioncache.ir.errors import Declined, Scope
from fusioncache.transform.rewrite import deletes, derive, rebind

_DTYPES = ("bfloat16", "float32", "float64")
"""Of gradients. Each can be converted to those behind it, and back, with no change."""


def average_in_collectives(trace: Any) -> Any:
    """Returns a trace whose collectives average where it divided before; the same one if there is none.

    It stays, too, if something in it may write where a gradient lies, which the collective reads later than the
    division did.

    Args:
        trace: a final one.
    """
    start = time.perf_counter()
    symbols = [symbol for symbol in trace.bound_symbols if not deletes(symbol)]
    averages = find_averages(symbols)
    if not averages or not _all_effects_known(symbols):
        return trace
    divided = {id(division) for division, _ in averages.values()}
    placed = [
        _average(symbol, averages[position][1]) if position in averages else symbol
        for position, symbol in enumerate(symbols)
        if id(symbol) not in divided
    ]
    return derive(trace, placed, "Averages in collectives by fusioncache", start)


def find_averages(symbols: Sequence[Any]) -> Mapping[int, tuple[Any, Any]]:
    """Returns for the position of each collective that may average the division that it replaces, and the gradient."""
    makers = {proxy.name: symbol for symbol in symbols for proxy in outputs_of(symbol)}
    uses = Counter(name for symbol in symbols for name in {proxy.name for proxy in symbol.flat_proxy_args})
    found: dict[int, tuple[Any, Any]] = {}
    for position, symbol in enumerate(symbols):
        if not _adds_up(symbol):
            continue
        division = makers.get(arguments_of(symbol)["a"].name)
        gradient = None if division is None else divided_by(division, 2)
        if gradient is not None and uses[arguments_of(symbol)["a"].name] == 1:
            found[position] = division, gradient
    return found


def _adds_up(symbol: Any) -> bool:
    """Tells whether a bound symbol is a sum over ranks in whose place an average may stand."""
    from fusioncache.thunder_adapter.api import DistributedReduceOps

    if kind_of(symbol) is not Kind.REDUCE or str(symbol.sym.id) not in _FUNCTIONS:
        return False
    given = arguments_of(symbol)
    plain = given["do_async"] is True and not given.get("skip_clone") and given.get("dim") is None
    return plain and given["op"] is DistributedReduceOps.SUM and averages_exactly(given["group"])


def averages_exactly(group: Any) -> bool:
    """Tells whether a process group's average is the sum of halves: it has two ranks, and only NCCL."""
    from torch.distributed import get_backend

    return bool(group.size() == 2 and get_backend(group) == "nccl")


def divided_by(symbol: Any, number: int) -> Any | None:
    """Returns the proxy that a bound symbol divides by a number, and does nothing else; None if it is not so.

    What it gives is of the same dtype. On the way it may be of one that holds more, as Thunder divides a bfloat16.
    """
    taken, given = {proxy.name: proxy for proxy in symbol.flat_proxy_args}, outputs_of(symbol)
    if len(taken) != 1 or len(given) != 1:
        return None
    (source,) = taken.values()
    now, divisions = source, 0
    for leaf in leaves_of(symbol):
        if not leaf.flat_proxy_args and not leaf.flat_proxy_outs:
            continue  # converts a number
        if [proxy.name for proxy in leaf.flat_proxy_args] != [now.name] or not _keeps(leaf, source, number):
            return None
        divisions += _divides(leaf, number)
        now = leaf.output
    same = now.name == given[0].name and _dtype_of(now) == _dtype_of(source)
    return source if divisions == 1 and same else None


def _keeps(leaf: Any, source: Any, number: int) -> bool:
    """Tells whether an operation divides, or only converts to a dtype that holds all that the source's does."""
    from fusioncache.thunder_adapter.api import PrimIDs

    if not hasattr(leaf.output, "dtype") or _dtype_of(source) not in _DTYPES:
        return False
    wider = _DTYPES[_DTYPES.index(_dtype_of(source)) :]
    is_conversion = leaf.sym.id is PrimIDs.CONVERT_ELEMENT_TYPE
    return _dtype_of(leaf.output) in wider and (_divides(leaf, number) or is_conversion)


def _divides(leaf: Any, number: int) -> bool:
    from fusioncache.thunder_adapter.api import PrimIDs

    return bool(
        leaf.sym.id is PrimIDs.DIV
        and len(leaf.args) == 2
        and isinstance(leaf.args[1], int | float)
        and leaf.args[1] == number
    )


def _dtype_of(proxy: Any) -> str:
    from fusioncache.thunder_adapter.api import to_torch_dtype

    return str(to_torch_dtype(proxy.dtype)).removeprefix("torch.")


def _all_effects_known(symbols: Iterable[Any]) -> bool:
    try:
        for symbol in symbols:
            if kind_of(symbol) is None:
                check_effects(symbol)
    except Declined as declined:
        declined.require(Scope.REGION)
        return False
    return True


def _average(symbol: Any, gradient: Any) -> Any:
    """Returns the bound symbol that averages a gradient over ranks, in the place of one that adds up its halves."""
    from fusioncache.thunder_adapter.api import DistributedReduceOps

    return rebind(symbol, _FUNCTIONS[str(symbol.sym.id)], (gradient, DistributedReduceOps.AVG, *symbol.args[2:]))


def operation_of_torch(operation: Any) -> Any:
    """Returns torch's name for what Thunder has ranks do."""
    from torch.distributed import ReduceOp

    from fusioncache.thunder_adapter.api import DistributedReduceOps
    from fusioncache.thunder_adapter.schedule_api import to_torch_distributed_reduce_op

    return ReduceOp.AVG if operation is DistributedReduceOps.AVG else to_torch_distributed_reduce_op(operation)


def all_reduce_average(gradient: Any, op: Any, group: Any, do_async: bool, skip_clone: bool = False) -> tuple[Any, Any]:
    """Starts to average a tensor, which all ranks get whole. It need not be contiguous, where its half was."""
    import torch
    import torch.distributed as distributed

    output = gradient.clone(memory_format=torch.contiguous_format)
    return distributed.all_reduce(output, distributed.ReduceOp.AVG, group, async_op=True), output


def reduce_scatter_average(gradient: Any, op: Any, group: Any, do_async: bool, dim: None = None) -> tuple[Any, Any]:
    """Starts to average a tensor, of which each rank gets a part along the first dimension."""
    import torch.distributed as distributed

    gradient = gradient.contiguous()
    output = gradient.new_empty((gradient.shape[0] // group.size(), *gradient.shape[1:]))
    operation = distributed.ReduceOp.AVG
    return distributed.reduce_scatter_tensor(output, gradient, operation, group, async_op=True), output


_FUNCTIONS: Mapping[str, Callable[..., tuple[Any, Any]]] = {
    "torch_all_reduce_prim_impl": all_reduce_average,
    "torch_reduce_scatter_prim_impl": reduce_scatter_average,
}
"""Of each sum over ranks what starts the average instead."""
