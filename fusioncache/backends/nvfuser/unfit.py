"""What is known not to be kept before nvFuser compiles it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusioncache.backends.api import NotPersistable, NotPersistableNow
from fusioncache.ir import Graph, NumberType
from fusioncache.ir.ops import op_traits


def refuse_unfit(graph: Graph, args: Sequence[Any]) -> None:
    """Refuses a program of which nothing can be kept.

    Raises:
        NotPersistable: says why.
    """
    import torch

    if any(isinstance(type_, NumberType) for type_ in graph.inputs):
        raise NotPersistable("a number among the inputs")
    if graph.sizes:
        raise NotPersistable("symbolic sizes")
    if any(op_traits(op.name).random for op in graph.ops):
        raise NotPersistable("random numbers")
    if not args:
        raise NotPersistable("no inputs")
    if not all(isinstance(arg, torch.Tensor) and arg.is_cuda for arg in args):
        raise NotPersistable("an input that is no CUDA tensor")
    if len(device_kinds()) > 1:
        # The key does not say on which of them a region runs, and kernels are scheduled for one.
        raise NotPersistable("GPUs of several kinds in one process")
    _refuse_arguments(args)


def _refuse_arguments(args: Sequence[Any]) -> None:
    """Refuses what another call of the same program may do without."""
    import torch

    if len({arg.get_device() for arg in args}) > 1:
        raise NotPersistableNow("inputs on several devices")
    if not all(arg.layout == torch.strided and type(arg.data) is torch.Tensor for arg in args):
        raise NotPersistableNow("an input that is no plain tensor")
    if any(arg.is_conj() or arg.is_neg() for arg in args):
        raise NotPersistableNow("an input that is to be conjugated or negated when it is read")


def device_kinds() -> tuple[str, ...]:
    """What the GPUs of this process are, each kind once: name, multiprocessors, architecture."""
    import torch

    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    kinds = {f"{gpu.name}, {gpu.multi_processor_count} SMs, {gpu.major}.{gpu.minor}" for gpu in found}
    return tuple(sorted(kinds))
