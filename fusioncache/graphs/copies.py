"""What leaves a graph: a copy, as the next replay overwrites the memory; or the memory itself, where that is lent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.graphs.aliases import Aliases


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor that shares memory with others that leave, or is full of holes.

    Attributes:
        index: of the tensor among those that are copied.
        alias: lies as the copy is to lie in its own memory.
    """

    index: int
    alias: Any


class Copier:
    """Copies tensors out of the memory of a graph, or lends them. Those that share memory share it outside as well.

    Args:
        tensors: that lie in memory of the graph.
        aliases: makes tensors that lie there and do not own it.
    """

    __slots__ = ("_aliases", "_dense", "_empty", "_shared")

    def __init__(self, tensors: Sequence[Any], aliases: Aliases):
        self._aliases = [aliases.make(tensor) for tensor in tensors]
        self._empty = [index for index, alias in enumerate(self._aliases) if not alias.numel()]
        self._dense: dict[Any, tuple[list[int], list[Any]]] = {}
        self._shared: list[tuple[Any, list[_View]]] = []
        owners = Counter(find_memory(tensor) for tensor in tensors)
        shared: dict[int, list[_View]] = {}
        for index, tensor in enumerate(tensors):
            alias, memory = self._aliases[index], find_memory(tensor)
            if tensor.numel() == 0 or (owners[memory] == 1 and is_dense(tensor)):
                indices, sources = self._dense.setdefault(tensor.dtype, ([], []))
                indices.append(index)
                sources.append(alias)
                continue
            if memory not in shared:
                shared[memory] = []
                self._shared.append((aliases.make_bytes(tensor), shared[memory]))
            shared[memory].append(_View(index, alias))

    @property
    def count(self) -> int:
        """How many tensors it copies."""
        return len(self._aliases)

    def copy(self) -> list[Any]:
        """Returns a copy of each tensor, in order, with the same strides."""
        import torch

        copies: list[Any] = [None] * len(self._aliases)
        for indices, sources in self._dense.values():
            fresh = [torch.empty_like(source) for source in sources]
            if len(fresh) == 1:  # the other kernel would give all of a small one to one block of threads
                fresh[0].copy_(sources[0])
            else:
                torch._foreach_copy_(fresh, sources)
            for index, tensor in zip(indices, fresh, strict=True):
                copies[index] = tensor
        for memory, views in self._shared:
            storage = memory.clone().untyped_storage()
            for view in views:
                alias = view.alias
                own = torch.empty(0, dtype=alias.dtype, device=alias.device)
                copies[view.index] = own.set_(storage, alias.storage_offset(), alias.shape, alias.stride())
        return copies

    def lend(self) -> list[Any]:
        """Returns each tensor where it lies, in order, as a tensor of its own."""
        import torch

        lent = list(map(torch.Tensor.detach, self._aliases))
        for index in self._empty:
            lent[index] = self._aliases[index].clone()
        return lent

    def list_storages(self) -> dict[int, Any]:
        """Returns the memory that is lent, by its address."""
        return {find_memory(alias): alias.untyped_storage() for alias in self._aliases if alias.numel()}


def find_memory(tensor: Any) -> int:
    """Returns the address of the memory that a tensor is part of."""
    return tensor.untyped_storage().data_ptr()


def is_dense(tensor: Any) -> bool:
    """Tells whether the elements of a tensor lie side by side, in any order, each in a place of its own."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
