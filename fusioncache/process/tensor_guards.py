"""Torch's tensor guards: one call checks whether many tensors have the same properties as given ones.

``torch.compile`` checks its inputs with them, in C++ (``TensorGuards`` in ``torch/csrc/dynamo/guards.cpp``): classes,
dtypes, devices, sizes, strides, whether a gradient is required, and dispatch keys, which distinguish layouts and lazy
negatives and conjugates. They are not public. So each property is tried once in a process, and if a guard misses a
change of one, no guards are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch

Guard = Callable[..., bool]
"""Takes one value for each tensor that it was made of. True means that each value has the properties of its tensor.

False means nothing: other causes are one tensor given twice, or a context such as ``torch.inference_mode``.
"""


def guard_tensors(tensors: Sequence[Any]) -> Guard | None:
    """Returns a guard of tensors, which it does not reference; None without guards, or if it cannot guard these values.

    Tensors of foreign classes are not guarded, because they can report any properties.
    """
    guards = find_guards()
    return None if guards is None else _make_guard(guards, tensors)


@cache
def find_guards() -> type | None:
    """Returns torch's class of guards; None if this torch has none, or if it misses one of the changes."""
    try:
        from torch._C._dynamo.guards import TensorGuards
        from torch.utils._python_dispatch import _disable_current_modes

        # Dispatch modes would observe these trials, and some would change them.
        with torch.inference_mode(False), _disable_current_modes(), torch._C.DisableTorchFunction():
            return TensorGuards if all(_notices(TensorGuards, *each) for each in _list_changes()) else None
    except Exception:  # after any error tensors are checked one by one
        return None


def _make_guard(guards: type, tensors: Sequence[Any]) -> Guard | None:
    classes = frozenset({torch.Tensor, torch.nn.Parameter})
    is_nested = torch.Tensor.is_nested.__get__  # type: ignore[attr-defined]

    def are_plain(values: Sequence[Any]) -> bool:
        # Torch's guards read the strides of all values, and abort the process if there are none, as in nested tensors.
        return classes.issuperset(map(type, values)) and not any(map(is_nested, values))

    try:
        check = are_plain(tensors) and guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    except Exception:  # if torch cannot guard them, they are checked one by one
        return None
    return (lambda *values: are_plain(values) and check(*values)) if check else None


def _list_changes() -> Iterator[tuple[Any, Any]]:
    """Yields pairs that differ in one property. Omits two devices of one type, which not all machines have."""
    tensor = torch.zeros(2, 3, dtype=torch.float32, device="cpu")
    number = torch.zeros(2, dtype=torch.complex64, device="cpu")
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


def _notices(guards: type, tensor: Any, other: Any) -> bool:
    """True if a guard of one tensor accepts it and rejects the other, with and without gradients."""
    beside = torch.zeros(1, device="cpu")
    guard = _make_guard(guards, [tensor, beside])
    if guard is None:
        return False
    answers = []
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            answers += [guard(tensor, beside), not guard(other, beside)]
    return all(answers)
