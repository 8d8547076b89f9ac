"""Models whose layers are sharded over ranks, and functions that train them and join the ranks' results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy, dropout, scaled_dot_product_attention, silu

COLUMN, ROW, GATHERED = ("embedding", "*.q", "*.k", "*.v", "*.gate", "*.up"), ("*.proj", "*.down"), ("head",)


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model. Ranks shard heads, groups of heads, features of the gated part and the vocabulary."""

    heads: int = 4
    groups: int = 2
    head_size: int = 4
    gated: int = 24
    vocabulary: int = 34
    length: int = 8
    dropout: float = 0.0

    @property
    def width(self) -> int:
        return self.heads * self.head_size


class Attention(torch.nn.Module):
    """As Llama's: fewer keys and values than queries, which are turned; with a norm of each query besides."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.sizes = sizes
        width, shared = sizes.width, sizes.groups * sizes.head_size
        self.q, self.proj = torch.nn.Linear(width, width, bias=True), torch.nn.Linear(width, width)
        self.k, self.v = torch.nn.Linear(width, shared, bias=False), torch.nn.Linear(width, shared, bias=False)
        self.norm = torch.nn.RMSNorm(sizes.head_size)
        turns = torch.outer(torch.arange(sizes.length), torch.linspace(0.1, 1, sizes.head_size))
        self.register_buffer("cos", turns.cos())
        self.register_buffer("sin", turns.sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes, (batch, length, width) = self.sizes, x.shape
        query = self.q(x).view(batch, length, sizes.heads, sizes.head_size).transpose(1, 2)
        query, key = self.turn(self.norm(query)), self.turn(self.repeat(self.k(x)))
        attended = scaled_dot_product_attention(query, key, self.repeat(self.v(x)), None, sizes.dropout, is_causal=True)
        return self.proj(attended.transpose(1, 2).contiguous().view(batch, length, width))

    def repeat(self, x: torch.Tensor) -> torch.Tensor:
        sizes, (batch, length) = self.sizes, x.shape[:2]
        grouped = x.view(batch, length, sizes.groups, 1, sizes.head_size).permute(0, 2, 3, 1, 4)
        expanded = grouped.expand(batch, sizes.groups, sizes.heads // sizes.groups, length, sizes.head_size)
        return expanded.reshape(batch, sizes.heads, length, sizes.head_size)

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        half, length = self.sizes.head_size // 2, x.shape[2]
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * self.cos[:length] + turned * self.sin[:length]


class GatedBlock(torch.nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        self.attention, self.norm = Attention(sizes), torch.nn.RMSNorm(sizes.width)
        self.before = torch.nn.RMSNorm(sizes.width)
        self.gate = torch.nn.Linear(sizes.width, sizes.gated, bias=False)
        self.up = torch.nn.Linear(sizes.width, sizes.gated)
        self.down = torch.nn.Linear(sizes.gated, sizes.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        y = self.norm(x)
        gated = dropout(silu(self.gate(y)) * self.up(y), self.sizes.dropout, self.training)
        return x + self.down(gated)


class GatedLlama(torch.nn.Module):
    def __init__(self, sizes, layers=1, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = torch.nn.ModuleList(GatedBlock(sizes) for _ in range(layers))
        self.norm = torch.nn.RMSNorm(sizes.width)
        self.head = torch.nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.to(dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class WholeNumbers(torch.nn.Module):
    """A gated model that computes with small whole numbers only, so that every sum is exact in any order."""

    def __init__(self, width: int = 6, gated: int = 12, vocabulary: int = 18, *, tied: bool = False):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.gate, self.up = torch.nn.Linear(width, gated, bias=False), torch.nn.Linear(width, gated)
        self.down = torch.nn.Linear(gated, width)
        self.head = torch.nn.Linear(width, vocabulary, bias=False)
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-2, 3, parameter.shape))
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = x + self.down(torch.relu(self.gate(x)) * self.up(x))
        return self.head(x)


Values = dict[str, torch.Tensor]


def take_steps(model, sizes, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(steps):
        tokens = draw_tokens(sizes, step).to(next(model.parameters()).device)
        loss = cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1).flatten())
        loss.backward()
        gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        seen.append({"loss": loss.detach(), **gradients})
        optimizer.step()
        optimizer.zero_grad()
    return seen


def draw_tokens(sizes: Sizes, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randint(0, sizes.vocabulary, (2, sizes.length))


def join(ranks: Sequence[Values], wholes: Mapping[str, torch.Size]) -> Values:
    """Returns whole tensors joined from the ranks' parts; asserts that unsharded ones are equal on all ranks."""
    joined = {}
    for name, first in ranks[0].items():
        parts = [rank[name] for rank in ranks]
        dims = [dim for dim, size in enumerate(wholes.get(name, first.shape)) if size != first.shape[dim]]
        assert dims or all(torch.equal(part, first) for part in parts), name
        joined[name] = torch.cat(parts, dims[0]) if dims else first
    return joined
