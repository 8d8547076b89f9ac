"""A small transformer whose forward pass goes by something of every kind that random mutations can change.

``random_mutations`` reads this file, changes the text, and runs it as a module of its own.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn, rsqrt
from torch.utils.checkpoint import checkpoint

GAIN = 1.25
OFFSETS = [0.125, 0.25]
LIMITS = {"low": -2.0, "high": 2.0}
SHIFTED = True


class Placement(enum.Enum):
    """Where a norm stands."""

    BEFORE = "before"
    AFTER = "after"


@dataclass
class Config:
    """What a model is made with."""

    width: int = 4
    heads: int = 2
    layers: int = 2
    eps: float = 1e-5
    activation: str = "silu"
    placement: Placement = Placement.BEFORE
    scales: dict[str, float] = field(default_factory=lambda: {"attention": 0.5, "mlp": 1.5})


def shift(x: torch.Tensor, slope: float = 0.5, *, offset: float = 0.25) -> torch.Tensor:
    def halve(y: torch.Tensor) -> torch.Tensor:
        return y * 0.5

    return halve(x) * slope + offset if SHIFTED else halve(x)


def make_scaler(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return scale


def double(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(function)
    def doubled(*args: Any, **kwargs: Any) -> torch.Tensor:
        return function(*args, **kwargs) * 2.0

    return doubled


@double
def squash(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) + 0.5


def add_offset(module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
    return output + OFFSETS[1]


SCALER = make_scaler(1.5)
CLAMP = functools.partial(torch.clamp, min=-4.0, max=4.0)
ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "squash": squash}


class Base(nn.Module):
    """What attributes are inherited from."""

    power = 2
    bonus = 0.75

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    @property
    def eps(self) -> float:
        return self.config.eps * 2.0

    @staticmethod
    def combine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    @classmethod
    def exponent(cls) -> int:
        return cls.power

    def finish(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.bonus


class Norm(Base):
    """A norm by hand, with a mean that it keeps."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.weight = nn.Parameter(torch.ones(config.width))
        self.register_buffer("mean", torch.zeros(config.width))
        self.rate = 0.1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.pow(self.exponent()).mean(-1, keepdim=True)
        x = x * rsqrt(variance + self.eps) * self.weight
        if self.training and self.rate > 0.0:
            self.mean.mul_(1.0 - self.rate).add_(x.detach().mean((0, 1)) * self.rate)
        return x + self.mean

    def finish(self, x: torch.Tensor) -> torch.Tensor:
        return super().finish(x) + 0.25


class Attention(Base):
    """Attention of a few heads."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        size = width // self.config.heads
        split = [each.view(rows, length, self.config.heads, size).transpose(1, 2) for each in self.qkv(x).chunk(3, -1)]
        query, key, value = split
        scores = F.softmax(query @ key.transpose(-2, -1) / math.sqrt(size), -1)
        return self.dropout(scores @ value).transpose(1, 2).reshape(rows, length, width)


class Block(Base):
    """Attention and a small network, each with a norm."""

    def __init__(self, config: Config, number: int) -> None:
        super().__init__(config)
        self.norm, self.attention = Norm(config), Attention(config)
        self.up = nn.Linear(config.width, config.width)
        self.number = number
        self.factors = [1.0, 0.5]

    def __getattr__(self, name: str) -> Any:
        if name == "depth":
            return self.number + 1
        return super().__getattr__(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        config = self.config
        if config.placement is Placement.BEFORE:
            x = self.combine(x, self.attention(self.norm(x)) * config.scales["attention"])
        else:
            x = self.norm(self.combine(x, self.attention(x)))
        y = ACTIVATIONS[config.activation](self.up(x)) * config.scales["mlp"]
        for factor in self.factors:
            y = y * factor + 1.0 / self.depth
        return self.norm.finish(CLAMP(x - y))


class Transformer(Base):
    """The model."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embedding = nn.Linear(config.width, config.width)
        self.blocks = nn.ModuleList(Block(config, number) for number in range(config.layers))
        self.head = nn.Linear(config.width, config.width, bias=False)
        self.head.weight = self.embedding.weight
        self.embedding.register_forward_hook(add_offset)
        self.options = {"checkpoint": True, "names": ["embedding"]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.options["names"]:
            x = getattr(self, name)(x)
        first, *others = self.blocks
        x = checkpoint(first, x, use_reentrant=False) if self.options["checkpoint"] else first(x)
        for block in others:
            x = block(x)
        x = SCALER(shift(x)) * GAIN + OFFSETS[0]
        return torch.clamp(self.head(x), LIMITS["low"], LIMITS["high"])


def make_model() -> Transformer:
    """Makes the model with the same parameters each time."""
    torch.manual_seed(0)
    return Transformer(Config())
