"""A layer of experts as README shows it, and grouped products written as loops."""

from collections.abc import Iterator

import torch
from torch.nn import functional


class Experts(torch.nn.Module):
    """Each token goes to two experts: a router chooses them, and one grouped product is for all."""

    def __init__(self, size: int = 16, width: int = 32, experts: int = 8):
        super().__init__()
        self.router = torch.nn.Linear(size, experts, bias=False)
        self.up = torch.nn.Parameter(torch.randn(experts, size, width) / size**0.5)
        self.down = torch.nn.Parameter(torch.randn(experts, width, size) / width**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(torch.softmax(self.router(x), -1), 2)
        order = torch.argsort(chosen.flatten(), stable=True)
        counts = functional.one_hot(chosen.flatten(), self.up.shape[0]).sum(0)
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        hidden = functional.silu(functional.grouped_mm(x[order // 2], self.up, offs=ends))
        out = functional.grouped_mm(hidden, self.down, offs=ends)[torch.argsort(order)]
        return (out.unflatten(0, (-1, 2)) * weights.unsqueeze(-1)).sum(1)

    def count_tokens(self, x: torch.Tensor) -> list[int]:
        """Returns how many tokens each expert gets."""
        chosen = torch.topk(self.router(x), 2)[1]
        return torch.bincount(chosen.flatten(), minlength=self.up.shape[0]).tolist()


def multiply_in_a_loop(a: torch.Tensor, b: torch.Tensor, ends: list[int]) -> torch.Tensor:
    """A grouped product of any form, group by group."""
    if a.ndim == b.ndim == 3:
        return torch.stack([one @ other for one, other in zip(a, b, strict=True)])
    parts = list(cut(ends))
    if a.ndim == 2 and b.ndim == 3:
        return torch.cat([a[part] @ matrix for part, matrix in zip(parts, b, strict=True)])
    if a.ndim == 2:
        return torch.stack([a[:, part] @ b[part] for part in parts])
    return torch.cat([matrix @ b[:, part] for part, matrix in zip(parts, a, strict=True)], 1)


def cut(ends: list[int]) -> Iterator[slice]:
    """Yields where the groups are that end there."""
    yield from (slice(start, end) for start, end in zip([0, *ends], ends, strict=False))
