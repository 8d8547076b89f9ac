"""Memory at a fixed address that takes over what arguments hold, for a captured program to find it there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fusioncache.ir.errors import Declined, Scope

_ALIGNMENT = 16
"""Bytes. Kernels are chosen by how an address lies within so many, so a buffer lies as the argument does."""


@dataclass(frozen=True, slots=True)
class StaticBuffer:
    """A tensor at a fixed address, with the strides of the arguments that it takes over.

    Attributes:
        tensor: what a captured program reads.
        compact: the same memory without the dimensions of stride 0, in which all elements are one.
    """

    tensor: Any
    compact: Any

    def fill(self, argument: Any) -> None:
        """Takes over what an argument of the same shape and strides holds."""
        if self.compact is self.tensor:
            self.tensor.copy_(argument)
        else:
            self.compact.copy_(argument.as_strided(self.compact.shape, argument.stride()))


def make_buffer(argument: Any) -> StaticBuffer:
    """Returns a buffer for arguments that lie as this one does.

    Raises:
        Declined: if elements of it lie over each other in another way than by a stride of 0.
    """
    import torch

    shape, strides = tuple(argument.shape), argument.stride()
    compact_shape = tuple(1 if stride == 0 and size > 1 else size for size, stride in zip(shape, strides, strict=True))
    if overlaps(compact_shape, strides):
        raise Declined("an argument whose elements overlap in memory", Scope.CAPTURE)
    itemsize = argument.element_size()
    offset = argument.data_ptr() % _ALIGNMENT // itemsize
    memory = torch.empty(offset + count_elements(compact_shape, strides), dtype=argument.dtype, device=argument.device)
    tensor = memory.as_strided(shape, strides, offset)
    return StaticBuffer(tensor, tensor if shape == compact_shape else memory.as_strided(compact_shape, strides, offset))


def count_elements(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Returns how many elements lie from the first to the last one of a tensor, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def overlaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Tells whether two elements of a tensor may be one place in memory. True where that is hard to tell."""
    if 0 in shape:
        return False
    reach = 0
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
