"""Thunder symbols for the collective operations of tensor parallelism, each with its gradient.

A tensor is *whole* if each rank has all of it, *cut* if each has a part of it, and *partial* if each has a summand.

======================  ====================  =====================
symbol                  forward               gradient
======================  ====================  =====================
``copy_to_ranks``       nothing               partial to whole: sum
``sum_over_ranks``      partial to whole      nothing
``gather_parts``        cut to whole          whole to cut
``take_own_part``       whole to cut          cut to whole
``gather_for_parts``    cut to whole          partial to cut
``sum_into_parts``      partial to cut        cut to whole
======================  ====================  =====================

They consist of Thunder's collectives in their asynchronous form (start, then wait), which can be scheduled. The rank is
a tensor argument of the computation, so that regions are the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from fusioncache.thunder_adapter.api import DistributedReduceOps, ltorch, prims

Step = Callable[[Any, Any, int], Any]
"""Takes a tensor, a process group and a dimension, and returns a tensor."""


@cache
def rank_symbol(name: str) -> Any:
    """Returns the symbol of this name, with its gradient. It takes a tensor, a process group and a dimension."""
    from fusioncache.thunder_adapter.api import Languages, Symbol, get_grad, langctx, put_grad, register_grad

    forward, backward = _STEPS[name]

    def differentiate(tensor: Any, group: Any, dim: int) -> Any:
        result = forward(tensor, group, dim)
        put_grad(tensor, backward(get_grad(result), group, dim))
        return result

    symbol = Symbol(name, meta=langctx(Languages.TORCH)(forward), id=f"fusioncache.{name}")
    register_grad(symbol, differentiate)
    return symbol


@cache
def rank_operator() -> Any:
    """Returns the operation whose result is this rank's number in a process group, a tensor of one 64-bit integer."""
    from fusioncache.thunder_adapter.api import TensorProxy, devices, dtypes
    from fusioncache.thunder_adapter.api import torch_executor as ex

    def infer(group: Any, device: str) -> Any:
        return TensorProxy(shape=(1,), device=devices.to_device(device), dtype=dtypes.int64)

    return ex.opmap.get("rank_in_group") or ex.register_operator("rank_in_group", meta=infer, fn=rank_in_group)


def register_rank_symbols() -> None:
    """Registers all symbols in Thunder, in the same order in each process: keys of programs list registered symbols."""
    rank_operator()
    for name in _STEPS:
        rank_symbol(name)


def rank_in_group(group: Any, device: str) -> Any:
    """Returns this rank's number in a process group as a tensor. It is cached, because a copy to a GPU takes time."""
    return _make_rank(int(group.rank()), device)


@cache
def _make_rank(rank: int, device: str) -> Any:
    import torch

    return torch.tensor([rank], device=device)


def _copy(tensor: Any, group: Any, dim: int) -> Any:
    return prims.shallow_copy(tensor)


def _add_up(tensor: Any, group: Any, dim: int) -> Any:
    from fusioncache.thunder_adapter.accelerator_api import all_reduce

    return all_reduce(ltorch.contiguous(tensor), DistributedReduceOps.SUM, group, True).wait()


def _gather(tensor: Any, group: Any, dim: int) -> Any:
    """Gathers along dimension 0, which all libraries support, then moves the parts to the given dimension."""
    from fusioncache.thunder_adapter.accelerator_api import all_gather

    gathered = all_gather(ltorch.contiguous(tensor), group, True).wait()
    if dim == 0:
        return gathered
    shape, ranks = tuple(tensor.shape), group.size()
    apart = ltorch.reshape(gathered, (ranks, *shape))
    order = (*range(1, dim + 1), 0, *range(dim + 1, tensor.ndim + 1))
    return ltorch.reshape(ltorch.permute(apart, order), (*shape[:dim], ranks * shape[dim], *shape[dim + 1 :]))


def _scatter_sum(tensor: Any, group: Any, dim: int) -> Any:
    from fusioncache.thunder_adapter.accelerator_api import reduce_scatter

    parts = ltorch.contiguous(ltorch.movedim(_split(tensor, group.size(), dim), dim, 0))
    flat = ltorch.reshape(parts, (parts.shape[0] * parts.shape[1], *parts.shape[2:]))
    return reduce_scatter(flat, DistributedReduceOps.SUM, group, True).wait()


def _own_part(tensor: Any, group: Any, dim: int) -> Any:
    parts = _split(tensor, group.size(), dim)
    return ltorch.squeeze(ltorch.index_select(parts, dim, rank_operator()(group, tensor.device.device_str())), dim)


def _split(tensor: Any, ranks: int, dim: int) -> Any:
    """Returns a tensor with a dimension for the ranks inserted in front of the given one."""
    shape = tuple(tensor.shape)
    return ltorch.reshape(tensor, (*shape[:dim], ranks, shape[dim] // ranks, *shape[dim + 1 :]))


_STEPS: dict[str, tuple[Step, Step]] = {
    "copy_to_ranks": (_copy, _add_up),
    "sum_over_ranks": (_add_up, _copy),
    "gather_parts": (_gather, _own_part),
    "take_own_part": (_own_part, _gather),
    "gather_for_parts": (_gather, _scatter_sum),
    "sum_into_parts": (_scatter_sum, _gather),
}
"""The forward and the backward function of each symbol."""
