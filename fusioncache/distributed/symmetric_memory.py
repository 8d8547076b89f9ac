"""Joined products in torch's symmetric memory: memory of the GPUs of one node that all of them can read.

torch keeps a workspace for each group. A product that needs more than that has makes it anew, which all ranks do
together, as they run the same program on the same sizes. So it is as large as the longest sequence seen needs, and
nothing else depends on the length.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

_FIRST_BYTES = 2**20
"""Of a group's workspace in the beginning."""


class SymmetricProducts:
    """Joined products as torch has them. None needs NVLink's multicast."""

    def find_obstacle(self, group: Any, device: torch.device) -> str:
        """Returns why this rank cannot; nothing if it can. Asks no other rank."""
        from torch.distributed import get_backend

        if get_backend(group) != "nccl":
            return f"the ranks exchange over {get_backend(group)}, not NCCL"
        try:
            from torch.distributed._symmetric_memory import (  # noqa: F401
                _pipelined_produce_and_all2all,
                get_symm_mem_workspace,
            )
        except ImportError:
            return "this torch has no symmetric memory as it is used here"
        operations = ("fused_all_gather_matmul", "fused_matmul_reduce_scatter")
        if not all(hasattr(torch.ops.symm_mem, name) for name in operations):
            return "this torch has no products in symmetric memory"
        # torch puts its workspace there.
        return "" if _number_of(device) == torch.cuda.current_device() else "the model is not on the current GPU"

    def place_of(self, device: torch.device) -> str:
        """Returns the node and the number of a GPU."""
        started = Path("/proc/sys/kernel/random/boot_id")
        node = started.read_text().strip() if started.exists() else ""
        return f"{socket.gethostname()} {node}/{_number_of(device)}"

    def find_obstacle_between(self, device: torch.device, places: Sequence[str]) -> str:
        """Returns why this rank cannot reach the others, which are at these places; nothing if it can."""
        nodes, numbers = zip(*(place.rpartition("/")[::2] for place in places), strict=True)
        if len(set(nodes)) > 1:
            return "the ranks are on several nodes"
        if len(set(numbers)) < len(numbers):
            return "a rank does not see the GPUs of the others"
        own = _number_of(device)
        others = [int(number) for number in numbers if int(number) != own]
        if any(other >= torch.cuda.device_count() for other in others):
            return "a rank does not see the GPUs of the others"
        if not all(torch.cuda.can_device_access_peer(own, other) for other in others):
            return "a GPU cannot read another one's memory"
        return ""

    def prepare(self, group: Any, device: torch.device) -> str:
        """Makes with the other ranks memory that all of them can read; returns nothing, or raises."""
        from torch.distributed._symmetric_memory import get_symm_mem_workspace

        get_symm_mem_workspace(group.group_name, _FIRST_BYTES)
        return ""

    def gather(
        self, part: torch.Tensor, matrices: Sequence[torch.Tensor], group: Any, dim: int
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Returns all of a tensor of which each rank has a part along a dimension, and its product by each matrix."""
        # torch takes the dimension to the front, and raises if rows do not lie one behind the other then.
        rows = part.movedim(dim, 0).contiguous().movedim(0, dim)
        # It takes the way by multicast where the whole tensor is not asked for.
        whole, given = torch.ops.symm_mem.fused_all_gather_matmul(
            rows, list(matrices), dim, group.group_name, return_A=True
        )
        return whole, given

    def scatter(
        self, factors: Sequence[torch.Tensor], matrices: Sequence[torch.Tensor], group: Any, dim: int
    ) -> torch.Tensor:
        """Returns this rank's part along a dimension of a sum: of the factors' products by matrices, over all ranks."""
        if len(factors) > 1:
            return _scatter_several(factors, matrices, group, dim)
        given: torch.Tensor = torch.ops.symm_mem.fused_matmul_reduce_scatter(
            factors[0], matrices[0], "sum", dim, group.group_name
        )
        return given


def _scatter_several(
    factors: Sequence[torch.Tensor], matrices: Sequence[torch.Tensor], group: Any, dim: int
) -> torch.Tensor:
    """Adds up products where they are computed. torch's operation is of one product, and would take copies of these."""
    from torch.distributed._symmetric_memory import _pipelined_produce_and_all2all

    ranks, moved = group.size(), [factor.movedim(dim, 0) for factor in factors]
    pieces = [one.flatten(0, -2).chunk(ranks) for one in moved]

    def produce(rank: int, out: torch.Tensor) -> None:
        torch.mm(pieces[0][rank], matrices[0], out=out)
        for piece, matrix in zip(pieces[1:], matrices[1:], strict=True):
            out.addmm_(piece[rank], matrix)

    length, *others, _ = moved[0].shape
    stacked = factors[0].new_empty((moved[0][..., 0].numel(), matrices[0].shape[1]))
    _pipelined_produce_and_all2all(produce, stacked, group.group_name)
    summed = stacked.view(ranks, length // ranks, *others, -1).sum(0)
    return summed.movedim(0, dim).contiguous()


def _number_of(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
