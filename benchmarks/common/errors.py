"""How far tensors are from the right ones, and how far they may be.

An error is the relative L2 distance ``|x - right| / |right|`` of the output or of one gradient. The right ones are
those of eager torch with the very same weights in a wider dtype: float32 for 16 bits, else float64. Another way may
have twice the error that eager torch has in the model's own dtype, or twice that of arithmetic itself where eager has
less.
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
    """Returns the relative error of what was found, in the L2 norm; infinity for what is missing, or no number."""
    if found is None or expected is None or found.shape != expected.shape:
        return math.inf
    expected = expected.double()
    error = float((found.to(expected.device).double() - expected).norm() / expected.norm().clamp_min(1e-12))
    return math.inf if math.isnan(error) else error


def find_worst(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Returns the largest relative error of tensors in the same order."""
    return max(relative_error(one, other) for one, other in zip(found, expected, strict=True))


def compare_errors(found: Tensors, eager: Tensors, right: Tensors, inevitable: float) -> dict[str, Any]:
    """Returns the error that is largest in relation to what is allowed, that of eager torch there, and the verdict.

    Args:
        found: what is judged.
        eager: the tensors of eager torch in the same dtype.
        right: the right ones.
        inevitable: an error that no way can be blamed for.
    """
    errors = []
    for name in dict.fromkeys([*right, *found]):
        error, of_eager = (relative_error(each.get(name), right.get(name)) for each in (found, eager))
        of_eager = of_eager if math.isfinite(of_eager) else 0.0  # where eager has no number either, none is right
        errors.append((error / (_ALLOWED * max(of_eager, inevitable)), name, error, of_eager))
    share, name, error, of_eager = max(errors)
    return {"worst_tensor": name, "distance": error, "eager_distance": of_eager, "correct": share <= 1}


def judge(found: Tensors, model: nn.Module, step: Callable[[torch.dtype], Tensors]) -> dict[str, Any]:
    """Judges tensors as ``compare_errors`` does. Leaves the model in a wider dtype.

    Args:
        found: what is judged.
        model: as torch runs it.
        step: takes a step of it with floating inputs in a dtype, and returns its tensors.
    """
    dtype = next(model.parameters()).dtype
    eager = {name: tensor.clone() for name, tensor in step(dtype).items()}
    wider = torch.float32 if dtype.itemsize < 4 else torch.float64
    model.to(wider)
    with keep_wide(wider):
        right = step(wider)
    # A value of 16 bits is rounded from float32: half a unit. In float32 itself functions are a few units off.
    inevitable = (0.5 if dtype.itemsize < 4 else 4) * torch.finfo(dtype).eps
    return compare_errors(found, eager, right, inevitable)


def keep_wide(dtype: torch.dtype) -> mock._patch | nullcontext[None]:
    """Lets ``float`` leave float64 as it is while the reference runs in it.

    litgpt's RMSNorm calls ``float``, which would make the reference no better than the model's float32.
    """
    return mock.patch.object(torch.Tensor, "float", torch.Tensor.double) if dtype == torch.float64 else nullcontext()
