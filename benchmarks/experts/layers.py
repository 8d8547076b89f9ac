"""One layer of experts, with one grouped product for all of them and with a loop over them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class _Experts(nn.Module):
    """What both have: a router that picks two experts for each token, and the weights of all experts.

    Args:
        size: of a token.
        width: of what an expert computes in between.
        experts: how many.
    """

    def __init__(self, size: int, width: int, experts: int):
        super().__init__()
        self.router = nn.Linear(size, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, size, width) / size**0.5)
        self.down = nn.Parameter(torch.randn(experts, width, size) / width**0.5)

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the weights and the numbers of the two experts of each token."""
        return torch.topk(torch.softmax(self.router(x), -1), 2)


class GroupedExperts(_Experts):
    """Sorts the tokens by their experts, and multiplies them all at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what the experts make of tokens."""
        weights, chosen = self.route(x)
        order = torch.argsort(chosen.flatten(), stable=True)
        counts = functional.one_hot(chosen.flatten(), self.up.shape[0]).sum(0)
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        hidden = functional.silu(functional.grouped_mm(x[order // 2], self.up, offs=ends))
        out = functional.grouped_mm(hidden, self.down, offs=ends)[torch.argsort(order)]
        return (out.unflatten(0, (-1, 2)) * weights.unsqueeze(-1)).sum(1)


class LoopedExperts(_Experts):
    """Picks the tokens of one expert after the other, as litgpt's and Hugging Face's layers do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what the experts make of tokens."""
        weights, chosen = self.route(x)
        result = torch.zeros_like(x)
        for number in range(self.up.shape[0]):
            rows, places = torch.where(chosen == number)
            made = expert(x[rows], self.up[number], self.down[number])
            result = result.index_add(0, rows, made * weights[rows, places, None])
        return result


def expert(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Returns what one expert makes of its tokens."""
    return functional.silu(x @ up) @ down
