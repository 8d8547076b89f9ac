"""Passes that make collectives cheaper: sums in place, and several collectives in one call.

**Sums in place**, in the memory of a gradient that nothing else reads:

    t7 = torch.matmul(t5, t6)                                t7 = torch.matmul(t5, t6)
    (f1, t8) = torch_all_reduce_prim_impl(t7, SUM, ...)      (f1, t8) = all_reduce_in_place(t7, SUM, ...)

Thunder copies each gradient, and has the ranks add up the copies. The same numbers are added up by the same library. A
value is overwritten only if the collective is its only use, and if its maker is known to return memory of its own.

**Coalescing.** One call starts several collectives, each straight into memory of its own, with no copy. Each
collective returns a pair, as in Thunder: a future, here the same for all, and the tensor. The first wait stays as it
is; the others only take the tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fusioncache.accelerators.schedule.calls import Kind
from fusioncache.accelerators.schedule.collectives import TOGETHER, arguments_of, kind_of
from fusioncache.backends.bound_symbols import leaves_of, outputs_of
from fusioncache.transform.rewrite import make_symbol, rebind

_DTYPES = ("bfloat16", "float32", "float64")
"""Of gradients. Each can be converted to those behind it, and back, with no change."""


def only_divides(symbol: Any, number: int) -> bool:
    """True if a bound symbol divides a tensor by a number, and does nothing else.

    What it gives is of the same dtype. On the way it may be of one that holds more, as Thunder divides a bfloat16.
    """
    taken, given = {proxy.name: proxy for proxy in symbol.flat_proxy_args}, outputs_of(symbol)
    if len(taken) != 1 or len(given) != 1:
        return False
    (source,) = taken.values()
    now, divisions = source, 0
    for leaf in leaves_of(symbol):
        if not leaf.flat_proxy_args and not leaf.flat_proxy_outs:
            continue  # converts a number
        if [proxy.name for proxy in leaf.flat_proxy_args] != [now.name] or not _keeps(leaf, source, number):
            return False
        divisions += _divides(leaf, number)
        now = leaf.output
    return divisions == 1 and now.name == given[0].name and _dtype_of(now) == _dtype_of(source)


def _keeps(leaf: Any, source: Any, number: int) -> bool:
    """True if an operation divides, or only converts to a dtype that holds all that the source's does."""
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


def operation_of_torch(operation: Any) -> Any:
    """Returns torch's name for what Thunder has ranks do."""
    from fusioncache.thunder_adapter.accelerator_api import to_torch_distributed_reduce_op

    return to_torch_distributed_reduce_op(operation)


_SUM = "torch_all_reduce_prim_impl"
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
    if str(symbol.sym.id) != _SUM:
        return False
    given = arguments_of(symbol)
    if given["do_async"] is not True or given.get("skip_clone"):
        return False
    name, maker = given["a"].name, makers.get(given["a"].name)
    return maker is not None and uses[name] == 1 and _allocates(maker, name, given["group"].size())


def _allocates(maker: Any, name: str, ranks: int) -> bool:
    """True if a bound symbol gives one tensor, in memory that is nothing else's.

    A region might give what it takes, or lay one result where another one is, unless it is the division of a gradient
    by the number of ranks and nothing else.
    """
    if [proxy.name for proxy in outputs_of(maker)] != [name]:
        return False
    if maker.sym.is_fusion:
        return ranks > 1 and only_divides(maker, ranks)
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
