"""Collectives that travel together: one call starts several, each straight into memory of its own, with no copy.

Each brings a pair, as in Thunder: what is waited for, here the same for all, and the tensor. So waits stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusioncache.trace.collectives import TOGETHER, arguments_of
from fusioncache.trace.rewrite import make_symbol

Futures = tuple[tuple[Any, Any], ...]
"""Of each tensor what is waited for, and where it comes to lie."""


def coalesce(symbols: Sequence[Any]) -> Any:
    """Returns a bound symbol that starts what several start: collectives of one kind, on one group.

    Args:
        symbols: those that start one each.
    """
    name = TOGETHER[str(symbols[0].sym.id)]
    given = [arguments_of(symbol) for symbol in symbols]
    tensors, outputs = [each["a"] for each in given], tuple(symbol.output for symbol in symbols)
    operation = (given[0]["op"],) if "op" in given[0] else ()
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
    options.asyncOp, options.reduceOp = True, _operation_of_torch(operation)
    outputs = [_empty(tensor, tensor.shape[0] // group.size()) for tensor in tensors]
    work = group.reduce_scatter_tensor_coalesced(outputs, list(tensors), options)
    return tuple((work, output) for output in outputs)


def all_reduce_together(tensors: Sequence[Any], group: Any, operation: Any) -> Futures:
    """Starts to add up tensors, which all ranks get whole."""
    from torch.distributed.distributed_c10d import AllreduceCoalescedOptions

    options = AllreduceCoalescedOptions()
    options.asyncOp, options.reduceOp = True, _operation_of_torch(operation)
    outputs = [tensor.clone() for tensor in tensors]
    work = group.allreduce_coalesced(outputs, options)
    return tuple((work, output) for output in outputs)


def _empty(tensor: Any, rows: int) -> Any:
    return tensor.new_empty((rows, *tensor.shape[1:]))


def _operation_of_torch(operation: Any) -> Any:
    from thunder.torch import to_torch_distributed_reduce_op

    return to_torch_distributed_reduce_op(operation)


_FUNCTIONS: Mapping[str, Any] = {
    function.__name__: function for function in (gather_together, reduce_scatter_together, all_reduce_together)
}
