"""Torch's own guards of tensors: one call tells of many tensors whether they are as others were.

``torch.compile`` checks its inputs with them, in C++ (``TensorGuards`` in ``torch/csrc/dynamo/guards.cpp``): classes,
dtypes, devices, sizes, strides, whether a gradient is required, and dispatch keys, which tell layouts, and negatives
and conjugates that were not computed. They are no public part of torch. So each of these is tried once in a process,
and where one is not noticed, nobody gets a guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

Guard = Callable[..., bool]
"""Takes as many values as it was made of tensors. True tells that each is what the tensor in its place was.

False tells nothing: that one tensor is given twice is a reason too, or a context such as ``torch.inference_mode``.
"""


def guard_tensors(tensors: Sequence[Any]) -> Guard | None:
    """Returns a guard of tensors, which it does not keep; None where there are none, or not of such values."""
    make = find_maker()
    try:
        return None if make is None else make(tensors)
    except Exception:  # something that is no tensor, or one without strides
        return None


@cache
def find_maker() -> Callable[[Sequence[Any]], Guard] | None:
    """Returns what makes guards of tensors, if this torch has it and nothing escapes it."""
    import torch

    try:
        from torch._C._dynamo.guards import TensorGuards

        def make(tensors: Sequence[Any]) -> Guard:
            guard: Guard = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
            return guard

        with torch.inference_mode(False):
            return make if all(_notices(make, *each) for each in _list_changes()) else None
    except Exception:  # whatever it is, tensors are looked at one by one
        return None


def _list_changes() -> Iterator[tuple[Any, Any]]:
    """Yields pairs of tensors that differ in one thing. Two devices of one type are not to be had everywhere."""
    import torch

    tensor, number = torch.zeros(2, 3, device="cpu"), torch.zeros(2, dtype=torch.complex64, device="cpu")
    yield tensor, torch.nn.Parameter(tensor, requires_grad=False)
    yield tensor, tensor.double()
    yield tensor, tensor.to("meta")
    yield tensor, tensor[:1]
    yield tensor, tensor.reshape(3, 2)
    yield tensor, tensor.reshape(2, 3, 1)
    yield tensor, tensor.t().contiguous().t()
    yield tensor, tensor.detach().requires_grad_()
    yield tensor, tensor.to_sparse()
    yield tensor, torch._neg_view(tensor)
    yield number, number.conj()
    yield tensor, None


def _notices(make: Callable[[Sequence[Any]], Guard], tensor: Any, other: Any) -> bool:
    """Tells whether a guard of one tensor takes that and not another one, with and without gradients."""
    import torch

    beside = torch.zeros(1, device="cpu")
    guard = make([tensor, beside])
    answers = []
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            answers += [guard(tensor, beside), not guard(other, beside)]
    return all(answers)
