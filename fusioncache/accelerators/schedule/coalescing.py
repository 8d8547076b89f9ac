"""Collectives that travel together: one call starts several, each straight into memory of its own, with no copy.

Each brings a pair, as in Thunder: what is waited for, here the same for all, and the tensor. Of their waits the first
one stays as it is, and the others only take the tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fusioncache.accelerators.schedule.averaging import operation_of_torch
from fusioncache.accelerators.schedule.calls import Kind
from fusioncache.accelerators.schedule.collectives import TOGETHER, arguments_of, kind_of
from fusioncache.accelerators.schedule.overwriting import all_reduce_in_place, make_writable
from fusioncache.transform.rewrite import make_symbol

Futures = tuple[tuple[Any, Any], ...]
"""Of each tensor what is waited for, and where it comes to lie."""


def coalesce_steps(steps: Iterable[Sequence[Any]]) -> list[Any]:
    """Returns the bound symbols of a trace.

    Args:
        steps: bound symbols in order; several in one step are collectives that travel together.
    """
    placed: list[Any] = []
    batches: dict[str, int] = {}
    waited: set[int] = set()
    for number, step in enumerate(steps):
        if len(step) > 1:
            batches.update((proxy.name, number) for symbol in step for proxy in symbol.flat_proxy_outs)
            placed.append(coalesce(step))
            continue
        (symbol,) = step
        batch = batches.get(symbol.flat_proxy_args[0].name) if kind_of(symbol) is Kind.WAIT else None
        placed.append(_take_landed(symbol) if batch in waited else symbol)
        if batch is not None:
            waited.add(batch)
    return placed


def _take_landed(wait: Any) -> Any:
    """Returns what stands in the place of a wait where what it waits for was waited for before, on the same stream."""
    return make_symbol("landed", landed, wait.output, id="landed").bind(*wait.args, output=wait.output)


def landed(future: tuple[Any, Any]) -> Any:
    """Returns the tensor of a collective that another wait has ended."""
    return future[1]


def coalesce(symbols: Sequence[Any]) -> Any:
    """Returns a bound symbol that starts what several start: collectives of one kind, on one group.

    Args:
        symbols: those that start one each.
    """
    name = TOGETHER[str(symbols[0].sym.id)]
    given = [arguments_of(symbol) for symbol in symbols]
    tensors, outputs = [each["a"] for each in given], tuple(symbol.output for symbol in symbols)
    operation = (given[0]["op"],) if "op" in given[0] else ()
    in_place = tuple(symbol.sym.name == all_reduce_in_place.__name__ for symbol in symbols)
    operation = (*operation, in_place) if any(in_place) else operation
    symbol = make_symbol(name, _FUNCTIONS[name], outputs, id=name)
    return symbol.bind(tensors, given[0]["group"], *operation, output=outputs, subsymbols=tuple(symbols))


def gather_together(tensors: Sequence[Any], group: Any) -> Futures:
    """Starts to gather tensors, each along its first dimension."""
    from torch.distributed.distributed_c10d import AllgatherOptions

    options = AllgatherOptions()
    options.asyncOp = True
    outputs = [_empty(tensor, tensor.shape[0] * group.size()) for tensor in tensors]
    work = group.allgather_into_tensor_coalesced(outputs, list(tensors), options)
    return tuple((work, output) for output in outputs)


def reduce_scatter_together(tensors: Sequence[Any], group: Any, operation: Any) -> Futures:
    """Starts to add up tensors, of which each rank gets a part along the first dimension."""
    from torch.distributed.distributed_c10d import ReduceScatterOptions

    options = ReduceScatterOptions()
    options.asyncOp, options.reduceOp = True, operation_of_torch(operation)
    # A gradient that is not divided before need not be contiguous.
    inputs = [tensor.contiguous() for tensor in tensors]
    outputs = [_empty(tensor, tensor.shape[0] // group.size()) for tensor in inputs]
    work = group.reduce_scatter_tensor_coalesced(outputs, inputs, options)
    return tuple((work, output) for output in outputs)


def all_reduce_together(
    tensors: Sequence[Any], group: Any, operation: Any, in_place: Sequence[bool] | None = None
) -> Futures:
    """Starts to add up tensors, which all ranks get whole, some of them where they lie."""
    from torch.distributed.distributed_c10d import AllreduceCoalescedOptions

    options = AllreduceCoalescedOptions()
    options.asyncOp, options.reduceOp = True, operation_of_torch(operation)
    where = [False] * len(tensors) if in_place is None else in_place
    outputs = [make_writable(tensor, in_place=each) for tensor, each in zip(tensors, where, strict=True)]
    work = group.allreduce_coalesced(outputs, options)
    return tuple((work, output) for output in outputs)


def _empty(tensor: Any, rows: int) -> Any:
    return tensor.new_empty((rows, *tensor.shape[1:]))


_FUNCTIONS: Mapping[str, Any] = {
    function.__name__: function for function in (gather_together, reduce_scatter_together, all_reduce_together)
}
