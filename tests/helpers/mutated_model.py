"""A small model whose forward pass depends on something of every kind that a model can depend on."""

import math
import os
from collections import OrderedDict

import torch
from torch.nn import functional

GAIN = 1.5
CONFIG = {"eps": 1e-3, "layers": [1, 2]}
REGISTRY = {"act": functional.silu}
LIMIT = math.inf


def shift(x: torch.Tensor, slope: float = 0.1, *, offset: float = 0.25) -> torch.Tensor:
    def nested(y: torch.Tensor) -> torch.Tensor:
        return y + 0.5

    return nested(x) * slope + offset


def make_scaler(factor: float):
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return scale


scaler = make_scaler(1.25)
square = lambda x: x * x  # noqa: E731


class Base(torch.nn.Module):
    order = 2

    @property
    def bias_scale(self) -> float:
        return 0.5

    @staticmethod
    def combine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    @classmethod
    def power(cls) -> int:
        return cls.order


class Norm(Base):
    def __init__(self, size: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self.register_buffer("shift", torch.zeros(size))
        self.eps = 1e-5
        self.flags = OrderedDict(enabled=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.pow(self.power()).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps) * self.weight
        return x + self.shift * self.bias_scale if self.flags["enabled"] else x


class Mutable(Base):
    def __init__(self, size: int = 4):
        super().__init__()
        self.norm = Norm(size)
        self.first = torch.nn.Linear(size, size)
        self.second = torch.nn.Linear(size, size, bias=False)
        self.dropout = torch.nn.Dropout(0.0)
        self.scale = 2.0
        self.names = ("first", "second")
        self.activation = functional.gelu

    def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        x = self.norm(x)
        for name in self.names:
            x = self.combine(x, getattr(self, name)(x) * self.scale)
        x = REGISTRY["act"](x) * GAIN + CONFIG["eps"]
        x = self.activation(scaler(shift(square(x))))
        if os.environ.get("MUTATED_MODEL"):
            x = x * 2
        return functional.softmax(self.dropout(x), -1) * min(times, LIMIT)
