"""Passes that make collectives cheaper: sums in place, coalescing, and saved shards instead of whole parameters.

**Sums in place**, in the memory of a gradient that nothing else reads:

    t7 = torch.matmul(t5, t6)                                t7 = torch.matmul(t5, t6)
    (f1, t8) = torch_all_reduce_prim_impl(t7, SUM, ...)      (f1, t8) = all_reduce_in_place(t7, SUM, ...)

Thunder copies each gradient, and the ranks add up the copies. Here the same numbers are added up by the same library. A
value is overwritten only if the collective is its only use, and if its maker is known to return newly allocated memory.

**Coalescing.** One call starts several collectives, each straight into its own memory, without a copy. Each collective
returns a pair, as in Thunder: a future, here the same for all, and the tensor. The first wait does not change; the
others only return the tensor.

**ZeRO3.** Forward saves the shards of parameters, and backward gathers them again. Thunder 0.2.6 accepts
``FSDPType.ZERO3``, but saves whole parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusioncache.accelerators.schedule.calls import Kind
from fusioncache.accelerators.schedule.collectives import TOGETHER, arguments_of, is_view, kind_of
from fusioncache.backends.bound_symbols import leaves_of, may_write, outputs_of
from fusioncache.ir.errors import Declined, Scope
from fusioncache.thunder_adapter.api import PrimIDs, get_compile_data
from fusioncache.transform.rewrite import SavedSwap, find_saved, make_symbol, rebind, unpacks_saved


def only_divides(symbol: Any, number: int) -> bool:
    """True if a bound symbol divides a tensor by a number, and does nothing else except conversions."""
    taken, given = {proxy.name: proxy for proxy in symbol.flat_proxy_args}, outputs_of(symbol)
    if len(taken) != 1 or len(given) != 1:
        return False
    (now,) = taken.values()
    divisions = 0
    for leaf in leaves_of(symbol):
        if not leaf.flat_proxy_args and not leaf.flat_proxy_outs:
            continue  # converts a number
        divides = _divides(leaf, number)
        is_known = divides or leaf.sym.id is PrimIDs.CONVERT_ELEMENT_TYPE
        if [proxy.name for proxy in leaf.flat_proxy_args] != [now.name] or not is_known:
            return False
        divisions += divides
        now = leaf.output
    return divisions == 1 and now.name == given[0].name


def _divides(leaf: Any, number: int) -> bool:
    return bool(
        leaf.sym.id is PrimIDs.DIV
        and len(leaf.args) == 2
        and isinstance(leaf.args[1], int | float)
        and leaf.args[1] == number
    )


def operation_of_torch(operation: Any) -> Any:
    """Returns torch's reduce operation for Thunder's."""
    from fusioncache.thunder_adapter.accelerator_api import to_torch_distributed_reduce_op

    return to_torch_distributed_reduce_op(operation)


_SUM = "torch_all_reduce_prim_impl"
_PRODUCT, _OF_EMBEDDING = "matmul", "torch.ops.aten.embedding_backward"
"""Torch's operations whose result has its own memory: a product of matrices, a gradient that is not sparse."""


def reduce_in_place(symbols: Sequence[Any]) -> list[Any]:
    """Returns bound symbols with sums over ranks made in place if they may be. None may be a ``del`` statement."""
    producers = {proxy.name: symbol for symbol in symbols for proxy in outputs_of(symbol)}
    uses = Counter(name for symbol in symbols for name in {proxy.name for proxy in symbol.flat_proxy_args})
    return [
        rebind(symbol, all_reduce_in_place, symbol.args) if _can_overwrite(symbol, producers, uses) else symbol
        for symbol in symbols
    ]


def _can_overwrite(symbol: Any, producers: dict[str, Any], uses: Counter[str]) -> bool:
    if str(symbol.sym.id) != _SUM:
        return False
    given = arguments_of(symbol)
    if given["do_async"] is not True or given.get("skip_clone"):
        return False
    name, producer = given["a"].name, producers.get(given["a"].name)
    return producer is not None and uses[name] == 1 and _allocates(producer, name, given["group"].size())


def _allocates(producer: Any, name: str, ranks: int) -> bool:
    """True if a bound symbol returns one tensor, in memory that no other value shares.

    A region might return an argument, or put one result into the memory of another, unless it only divides a gradient
    by the number of ranks.
    """
    if [proxy.name for proxy in outputs_of(producer)] != [name]:
        return False
    if producer.sym.is_fusion:
        return ranks > 1 and only_divides(producer, ranks)
    if getattr(producer.sym.executor, "name", None) != "torch":
        return False
    if producer.sym.name == _PRODUCT:
        return all(proxy.ndim == 2 for proxy in producer.flat_proxy_args)
    return producer.sym.name == _OF_EMBEDDING and producer.args[5:] == (False,)


def all_reduce_in_place(gradient: Any, op: Any, group: Any, do_async: bool, skip_clone: bool = False) -> Any:
    """Starts an all-reduce of a tensor in place; in a copy if it is not contiguous.

    Returns:
        The future to wait for, and the tensor.
    """
    output = make_writable(gradient, in_place=True)
    return torch.distributed.all_reduce(output, operation_of_torch(op), group, async_op=True), output


def make_writable(gradient: Any, *, in_place: bool) -> Any:
    """Returns a tensor that ranks may overwrite: a contiguous gradient itself, if that is allowed, else a copy."""
    return gradient if in_place and gradient.is_contiguous() else gradient.clone(memory_format=torch.contiguous_format)


Futures = tuple[tuple[Any, Any], ...]
"""For each tensor the future to wait for, and the output."""


def coalesce_steps(steps: Iterable[Sequence[Any]]) -> list[Any]:
    """Returns the bound symbols of a trace, with the collectives of each step coalesced.

    Args:
        steps: bound symbols in order; several in one step are collectives to coalesce.
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
        placed.append(_replace_wait(symbol) if batch in waited else symbol)
        if batch is not None:
            waited.add(batch)
    return placed


def _replace_wait(wait: Any) -> Any:
    """Returns the replacement of a wait whose future was waited for before, on the same stream."""
    return make_symbol("landed", take_finished, wait.output, id="landed").bind(*wait.args, output=wait.output)


def take_finished(future: tuple[Any, Any]) -> Any:
    """Returns the tensor of a collective that another wait already ended."""
    return future[1]


def coalesce(symbols: Sequence[Any]) -> Any:
    """Returns a bound symbol that starts several collectives of one kind, on one group.

    Args:
        symbols: the bound symbols that each start one.
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
    """Starts a coalesced all-gather of tensors, each along its first dimension."""
    options = torch.distributed.distributed_c10d.AllgatherOptions()
    options.asyncOp = True
    outputs = [_empty(tensor, tensor.shape[0] * group.size()) for tensor in tensors]
    work = group.allgather_into_tensor_coalesced(outputs, list(tensors), options)
    return tuple((work, output) for output in outputs)


def reduce_scatter_together(tensors: Sequence[Any], group: Any, operation: Any) -> Futures:
    """Starts a coalesced reduce-scatter of tensors, each along its first dimension."""
    options = torch.distributed.distributed_c10d.ReduceScatterOptions()
    options.asyncOp, options.reduceOp = True, operation_of_torch(operation)
    inputs = [tensor.contiguous() for tensor in tensors]
    outputs = [_empty(tensor, tensor.shape[0] // group.size()) for tensor in inputs]
    work = group.reduce_scatter_tensor_coalesced(outputs, inputs, options)
    return tuple((work, output) for output in outputs)


def all_reduce_together(
    tensors: Sequence[Any], group: Any, operation: Any, in_place: Sequence[bool] | None = None
) -> Futures:
    """Starts a coalesced all-reduce of tensors, some of them in place."""
    options = torch.distributed.distributed_c10d.AllreduceCoalescedOptions()
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


@dataclass(frozen=True, slots=True)
class Resharding(SavedSwap):
    """The gathers that a backward trace needs once its forward trace saves shards.

    Attributes:
        gathering: the bound symbols that compute the values no longer saved: gathers, waits and views.
    """

    gathering: tuple[Any, ...]


def _wants_resharding() -> bool:
    """True if the model that Thunder is compiling is sharded by ``fsdp`` with ``FSDPType.ZERO3``."""
    from fusioncache.thunder_adapter.accelerator_api import FSDPTransform, FSDPType

    compile_data = get_compile_data()
    transforms = () if compile_data is None else compile_data.transforms
    return any(isinstance(one, FSDPTransform) and one.sharding_strategy is FSDPType.ZERO3 for one in transforms)


def save_shards(trace: Any) -> tuple[Any, Resharding | None]:
    """Returns a forward trace that saves the shards of gathered parameters, instead of the parameters or their views.

    Args:
        trace: a forward trace.

    Returns:
        The trace, and the gathers for the backward trace; None if there are none, or the model does not use ZeRO3.

    Raises:
        Declined: if the forward pass writes in place: gathering again might give other values.
    """
    tensors = find_saved(trace)
    if not tensors or not _wants_resharding():
        return trace, None
    arguments = trace.bound_symbols[-1].args[0]["flat_args"]
    inputs = {proxy.name: proxy for proxy in arguments if hasattr(proxy, "name")}
    producers = {proxy.name: symbol for symbol in trace.bound_symbols for proxy in symbol.flat_proxy_outs}
    remaining: dict[str, Any] = {}
    gathering: dict[int, Any] = {}
    for proxy in tensors:
        shard, steps = _trace_back(proxy, producers, inputs)
        remaining.setdefault(shard.name, shard)
        gathering.update((id(step), step) for step in steps)
    if not gathering:
        return trace, None
    if any(may_write(symbol) for symbol in trace.bound_symbols):
        raise Declined("whole parameters are saved: a trace with collectives writes in place", Scope.REGION)
    taken = tuple(remaining.values())
    if len(taken) == len(tensors):
        # With one value more, a backward trace without this change fails, and takes no shard for a whole parameter.
        taken += taken[:1]
    order = [symbol for symbol in trace.bound_symbols if id(symbol) in gathering]
    found = Resharding(tuple(proxy.name for proxy in tensors), taken, tuple(order))
    return found.save(trace, "Shards saved by fusioncache"), found


def _trace_back(proxy: Any, producers: Mapping[str, Any], inputs: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
    """Returns the shard that a value was gathered from, and the bound symbols on the way, the last one first.

    For a value that was not gathered from an input, it is the value itself, and no symbols.
    """
    steps: list[Any] = []
    now = proxy
    while now.name not in inputs:
        symbol = producers.get(now.name)
        if symbol is None or not (kind_of(symbol) in (Kind.GATHER, Kind.WAIT) or is_view(symbol)):
            return proxy, ()
        if len(symbol.flat_proxy_args) != 1:
            return proxy, ()
        steps.append(symbol)
        now = symbol.flat_proxy_args[0]
    gathered = any(kind_of(step) is Kind.GATHER for step in steps)
    return (inputs[now.name], steps) if gathered else (proxy, ())


def gather_again(trace: Any, resharding: Resharding) -> Any:
    """Returns a backward trace that takes shards, and gathers the parameters first.

    Raises:
        RuntimeError: if this is not the backward trace of that forward trace.
    """

    def change(symbols: Iterable[Any]) -> Iterator[Any]:
        for symbol in symbols:
            yield symbol
            if unpacks_saved(symbol):
                yield from resharding.gathering

    return resharding.take(trace, change, "Parameters gathered again by fusioncache")
