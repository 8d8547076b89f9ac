"""Which arguments kept code may be given: kernels read memory as it lies there, and only ever that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusioncache.backends.api import NotPersistable, NotPersistableNow, Run
from fusioncache.ir import Graph, TensorType
from fusioncache.ir.ops import writes_in_place
from fusioncache.process import forks


def refuse_unkeepable(graph: Graph, args: Sequence[Any]) -> None:
    """Refuses what is known not to be kept before it is compiled.

    Raises:
        NotPersistable: names it.
    """
    if not all(isinstance(type_, TensorType) for type_ in graph.inputs):
        raise NotPersistable("a number among the inputs")
    if not args:
        raise NotPersistable("no inputs")
    if any(arg.device.type != "cpu" for arg in args):
        raise NotPersistable("a tensor that is not on the CPU")
    if (problem := _mode() or _no_plain_tensor(args)) is not None:
        raise NotPersistableNow(problem)
    if writes_in_place(graph):  # what slips through is found again in what was compiled
        raise NotPersistable("in-place effects")


def _mode() -> str | None:
    """What is wrong with the modes that are on: they may make other operations of what is traced."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    return next((f"the mode {type(mode).__name__}" for mode in modes if not isinstance(mode, DeviceContext)), None)


def _no_plain_tensor(args: Sequence[Any]) -> str | None:
    import torch

    for arg in args:
        if type(arg) not in (torch.Tensor, torch.nn.Parameter):
            return f"an argument of type {type(arg).__name__}"
        if arg.layout != torch.strided or arg.is_quantized or arg.is_conj() or arg.is_neg():
            return "a tensor that is not stored plainly"
    return None


def for_plain(run: Run, args: Sequence[Any], compile_: Callable[[Sequence[Any]], Run]) -> Run:
    """A function that asks another one where arguments of the same layout are no plain tensors.

    What differs from call to call beside the layout is the type, and whether values are to be negated or conjugated
    when they are read. Neither alignment, nor autograd, nor memory that arguments share is of any matter: kernels load
    unaligned, are not dispatched, and write into nothing but their own outputs.

    Args:
        run: for plain tensors.
        args: some of them.
        compile_: makes the other function, which takes tensors of any kind. It is called when one is first needed.
    """
    import torch

    plain, is_neg, is_conj = {torch.Tensor, torch.nn.Parameter}.issuperset, torch.Tensor.is_neg, torch.Tensor.is_conj
    complex_ = any(arg.is_complex() for arg in args)  # others are never conjugated
    otherwise: Run | None = None
    lock = forks.lock()

    def for_any(args: Sequence[Any]) -> Sequence[Any]:
        nonlocal otherwise
        with lock:
            if otherwise is None:
                otherwise = compile_(args)
        return otherwise(args)

    def for_these(args: Sequence[Any]) -> Sequence[Any]:
        # Types first: tensors of other types may answer the other questions in their own way.
        if not plain(map(type, args)) or any(map(is_neg, args)) or (complex_ and any(map(is_conj, args))):
            return for_any(args)
        return run(args)

    return for_these
