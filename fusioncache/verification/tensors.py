"""Compares two tensors bit for bit or by a rule."""

from __future__ import annotations

from typing import Any

import torch

from fusioncache.template.exactness import Reordered

_ALIGNMENT = 64
"""Bytes, of all that torch allocates. How a kernel loads, and so in which order it adds up, may depend on alignment."""


def describe_difference(found: Any, expected: Any, rule: Reordered | None) -> str | None:
    """Returns what is wrong with a result; None if nothing is. Without a rule every bit must be the same."""
    if _describe(found) != _describe(expected):
        return f"is {_describe(found)} where the region has {_describe(expected)}"
    if not isinstance(expected, torch.Tensor):
        return None if repr(found) == repr(expected) else f"is {found!r} where the region has {expected!r}"
    if _strides_of(found) != _strides_of(expected):
        return f"lies in memory by strides {_strides_of(found)} where the region's does by {_strides_of(expected)}"
    one, other = _as_bits(found), _as_bits(expected)
    if torch.equal(one, other):
        return None
    off = (one != other).reshape(expected.numel(), -1).any(1)
    one, other = _widen(found), _widen(expected)
    gap = (one - other).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    asked = "every bit must be the same"
    if rule is not None:
        sizes = other.abs()[other.isfinite()]
        allowed = rule.relative * (sizes.max().item() if sizes.numel() else 0.0)
        off &= (gap > allowed) & ~(one.isnan() & other.isnan())
        asked = f"{allowed:.3g} is allowed for {rule}"
    many = int(off.sum())
    most = gap[off].max().item() if many else 0.0
    return f"differs in {many} of {expected.numel()} elements, by {most:.6g} at most; {asked}" if many else None


def _describe(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"


def _strides_of(tensor: torch.Tensor) -> list[int]:
    """Returns the strides of dimensions with more than one element: others may have any stride."""
    if not tensor.numel():
        return []
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _as_bits(tensor: torch.Tensor) -> torch.Tensor:
    packed = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # A single element may have any stride, and is contiguous all the same.
    return packed.as_strided((packed.numel(),), (1,)).view(torch.uint8)


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).to(torch.complex128 if tensor.is_complex() else torch.float64)


def copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy of the same layout and alignment."""
    start = tensor.data_ptr() % _ALIGNMENT // tensor.element_size()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.new_empty(start + last + 1 if tensor.numel() else start)
    return memory.as_strided(tensor.shape, tensor.stride(), start).copy_(tensor.detach())
