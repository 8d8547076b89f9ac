"""Errors of tensors relative to a reference, and the bounds of these errors.

An error is the relative L2 distance ``|x - right| / |right|`` of the output or of one gradient. The right tensors are
those of eager torch with the same weights in a wider dtype: float32 for 16 bits, else float64. A way may have twice the
error of eager torch in the model's dtype, or twice the rounding error of the dtype where eager's error is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from torch import nn

_ALLOWED = 2.0

Tensors = Mapping[str, torch.Tensor]
"""The output and the gradients of a step, by name."""


def relative_error(found: torch.Tensor | None, expected: torch.Tensor | None) -> float:
    """Returns the relative error in the L2 norm; infinity for a missing tensor, another shape or a NaN."""
    if found is None or expected is None or found.shape != expected.shape:
        return math.inf
    expected = expected.double()
    error = float((found.to(expected.device).double() - expected).norm() / expected.norm().clamp_min(1e-12))
    return math.inf if math.isnan(error) else error


def find_worst(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Returns the largest relative error of corresponding tensors."""
    return max(relative_error(one, other) for one, other in zip(found, expected, strict=True))


def compare_errors(found: Tensors, eager: Tensors, right: Tensors, inevitable: float) -> dict[str, Any]:
    """Returns the error with the largest ratio to its bound, eager torch's error of the same tensor, and the verdict.

    Args:
        found: the tensors to judge.
        eager: the tensors of eager torch in the same dtype.
        right: the right tensors.
        inevitable: the rounding error, which no way can avoid.
    """
    errors = []
    for name in dict.fromkeys([*right, *found]):
        error, of_eager = (relative_error(each.get(name), right.get(name)) for each in (found, eager))
        of_eager = of_eager if math.isfinite(of_eager) else 0.0  # an infinite error of eager's would allow any error
        errors.append((error / (_ALLOWED * max(of_eager, inevitable)), name, error, of_eager))
    share, name, error, of_eager = max(errors)
    return {"worst_tensor": name, "distance": error, "eager_distance": of_eager, "correct": share <= 1}


def check_against_wider(found: Tensors, model: nn.Module, step: Callable[[torch.dtype], Tensors]) -> dict[str, Any]:
    """Returns the verdict of ``compare_errors`` on tensors. Leaves the model in a wider dtype.

    Args:
        found: the tensors to judge.
        model: as eager torch runs it.
        step: takes a step of the model with floating-point inputs in a dtype, and returns its tensors.
    """
    dtype = next(model.parameters()).dtype
    eager = {name: tensor.clone() for name, tensor in step(dtype).items()}
    wider = torch.float32 if dtype.itemsize < 4 else torch.float64
    model.to(wider)
    with keep_wide(wider):
        right = step(wider)
    # Rounding float32 to 16 bits costs half a unit in the last place. Functions in float32 are a few units off.
    inevitable = (0.5 if dtype.itemsize < 4 else 4) * torch.finfo(dtype).eps
    return compare_errors(found, eager, right, inevitable)


def keep_wide(dtype: torch.dtype) -> mock._patch | nullcontext[None]:
    """Patches ``Tensor.float`` to return float64 while the reference runs in float64.

    litgpt's RMSNorm calls ``float``, which would reduce the reference to the model's float32.
    """
    return mock.patch.object(torch.Tensor, "float", torch.Tensor.double) if dtype == torch.float64 else nullcontext()
