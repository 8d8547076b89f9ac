"""Copies of tensors that lie in memory as the tensors do, and whether tensors are the same bit for bit."""

from __future__ import annotations

from typing import Any

import torch

_APART = 512
"""Bytes that copies are aligned to before they are put as far off as their original. Torch's own blocks are as well."""


def copied(tensor: Any) -> Any:
    """A tensor with the same values, strides and distance from alignment, in memory of its own."""
    flat = _flat(tensor)
    return _like(tensor, flat)


def rolled(tensor: Any) -> Any:
    """As ``copied``, with each value in its memory moved on by one place."""
    return _like(tensor, torch.roll(_flat(tensor), 1))


def _flat(tensor: Any) -> Any:
    """All of the memory from the first element to the last, whatever lies between them."""
    tensor = tensor.detach()
    if not tensor.numel():
        return tensor.reshape(-1)
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((1 + steps,), (1,), tensor.storage_offset())


def _like(tensor: Any, flat: Any) -> Any:
    if not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    item = tensor.element_size()
    off = tensor.data_ptr() % _APART
    memory = torch.empty(flat.numel() + _APART // item, dtype=tensor.dtype, device=tensor.device)
    missing = (off - memory.data_ptr()) % _APART
    if missing % item:
        raise ValueError("a tensor whose elements are not aligned")
    place = memory[missing // item :][: flat.numel()]
    place.copy_(flat)
    return place.as_strided(tensor.shape, tensor.stride(), place.storage_offset())


def equal_bits(one: Any, other: Any) -> bool:
    """Whether two tensors have the same shape, strides, dtype and bits."""
    if (one.shape, one.stride(), one.dtype) != (other.shape, other.stride(), other.dtype):
        return False
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: Any) -> Any:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
