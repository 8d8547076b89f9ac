"""Tensors that lie in memory which they do not own.

What a captured program leaves in the pool is found by its address. To the allocator that memory is free, so that other
captures may use it at other times; who may use it when is decided in ``memory.py``.
"""

from __future__ import annotations

from functools import partial
from typing import Any


class Aliases:
    """Makes tensors for the memory of others; those that share memory share it again.

    Args:
        keeper: something that lives as long as anybody has one of the tensors, a view of it, or its memory. None where
            somebody else sees to it that the memory is there.
    """

    def __init__(self, keeper: object = None) -> None:
        self._keeper = keeper
        self._storages: dict[int, Any] = {}

    def make(self, tensor: Any) -> Any:
        """Returns a tensor in the memory of another one, which may be gone afterwards."""
        import torch

        alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        if tensor.numel() == 0:
            return alias.new_empty_strided(tensor.shape, tensor.stride())
        return alias.set_(self._find_storage(tensor), tensor.storage_offset(), tensor.shape, tensor.stride())

    def make_bytes(self, tensor: Any) -> Any:
        """Returns all the memory that a tensor is part of, as bytes."""
        import torch

        storage = self._find_storage(tensor)
        return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))

    def _find_storage(self, tensor: Any) -> Any:
        import torch

        own = tensor.untyped_storage()
        address = own.data_ptr()
        found = self._storages.get(address)
        if found is None:
            found = torch._C._construct_storage_from_data_pointer(address, tensor.device, own.nbytes())
            if self._keeper is not None:
                found.keeper = self._keeper
                found._share_cuda_ = partial(_share_copy, address, tensor.device, own.nbytes())
            self._storages[address] = found
        return found


def _share_copy(address: int, device: Any, size: int, *args: Any) -> Any:
    """Gives another process a copy of memory that has a keeper: nobody counts here who has it there."""
    import torch

    return torch._C._construct_storage_from_data_pointer(address, device, size).clone()._share_cuda_(*args)
