"""A layer of experts as docs/train.md shows it, and grouped products written as loops."""

import torch

from benchmarks.zoo.token_models import GroupedExperts


class Experts(GroupedExperts):
    """A small one, which tells how many tokens each expert gets."""

    def __init__(self, size: int = 16, width: int = 32, experts: int = 8):
        super().__init__(size, width, experts)

    def count_tokens(self, x: torch.Tensor) -> list[int]:
        chosen = self.route(x)[1]
        return torch.bincount(chosen.flatten(), minlength=self.up.shape[0]).tolist()


def multiply_in_a_loop(a: torch.Tensor, b: torch.Tensor, ends: list[int]) -> torch.Tensor:
    if a.ndim == b.ndim == 3:
        return torch.stack([one @ other for one, other in zip(a, b, strict=True)])
    parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if a.ndim == 2 and b.ndim == 3:
        return torch.cat([a[part] @ matrix for part, matrix in zip(parts, b, strict=True)])
    if a.ndim == 2:
        return torch.stack([a[:, part] @ b[part] for part in parts])
    return torch.cat([matrix @ b[:, part] for part, matrix in zip(parts, a, strict=True)], 1)
