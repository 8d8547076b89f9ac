"""The models whose steps are measured, with their inputs, from a fixed seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import nn

SEED = 2916
LLAMA = "Llama-2-7b-hf"
MODELS = ("residual", "llama")
WIDTHS = ("narrow", "real")
TOKENS: Mapping[str, tuple[int, int]] = MappingProxyType({"narrow": (2, 64), "real": (1, 2048)})
"""Rows and tokens per row, by width."""

NARROW: Mapping[str, tuple[int, int, int, int]] = MappingProxyType(
    {"cuda": (512, 8, 1376, 1024), "cpu": (128, 4, 384, 512)}
)
"""Widths of narrow models, by device: embedding, number of heads, intermediate size of the MLP, vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Backend, device and dtype of a model. A benchmark's parent process and its workers exchange it.

    Attributes:
        backend: the compiler of regions: ``"nvfuser"``, ``"inductor"`` or ``"eager"``.
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of weights and activations, by torch's name.
    """

    backend: str
    device: str
    dtype: str

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Self:
        """Returns the object that ``dataclasses.asdict`` turned into JSON, in which tuples are lists."""
        found: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
        }
        return cls(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(Place):
    """A model and its step.

    Attributes:
        model: one of ``MODELS``.
        layers: of the model.
        width: of a Llama: ``"real"`` is the configuration of Llama-2-7b, except for the number of layers.
        tokens: rows, and tokens per row.
        grad: whether the step includes a backward pass.
    """

    model: str
    layers: int
    width: str = "narrow"
    tokens: tuple[int, int] = TOKENS["narrow"]
    grad: bool = True

    def __str__(self) -> str:
        return f"{self.model}, {count_layers(self.layers)}"


def count_layers(layers: int) -> str:
    """Returns the number of layers as text, such as ``8 layers``."""
    return f"{layers} {'layer' if layers == 1 else 'layers'}"


class Residual(nn.Module):
    """The model of NVIDIA/Fuser#2916: two residual adds per layer, norm = tanh, attention = mlp = weight @ x."""

    def __init__(self, layers: int, size: int = 10):
        super().__init__()
        # Small enough that values neither explode nor vanish in 128 layers.
        scale = 0.1 * size**-0.5
        self.weights = nn.ParameterList(nn.Parameter(scale * torch.randn(size, size)) for _ in range(2 * layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the residual stream after two adds per layer."""
        for weight in self.weights:
            x = x + weight @ torch.tanh(x)
        return x


def make_model(spec: ModelSpec) -> tuple[nn.Module, torch.Tensor]:
    """Returns the model on its device, and its input."""
    if spec.model == "residual":
        torch.manual_seed(SEED)
        model: nn.Module = Residual(spec.layers)
        example = torch.randn(10, 10).to(device=spec.device, dtype=getattr(torch, spec.dtype))
        model = model.to(device=spec.device, dtype=getattr(torch, spec.dtype))
    else:
        more = {"block_size": max(128, spec.tokens[1])} if spec.width == "narrow" else {}
        model = make_litgpt(LLAMA, spec.layers, spec.device, spec.dtype, width=spec.width, **more)
        example = make_tokens(model, spec.tokens, spec.device)
    return model.requires_grad_(spec.grad), example


def make_litgpt(
    name: str, layers: int, device: str, dtype: str, *, width: str = "narrow", seed: int = SEED, **changes: Any
) -> Any:
    """Returns a litgpt model, made on its device: making billions of random weights on the CPU takes minutes."""
    from litgpt import GPT

    torch.manual_seed(seed)
    config = make_config(name, layers, device, width, **changes)
    with torch.device(device):
        return GPT(config).to(getattr(torch, dtype))


def make_config(name: str, layers: int, device: str, width: str = "narrow", **changes: Any) -> Any:
    """Returns a litgpt configuration, narrow or with its original widths."""
    from litgpt import Config

    widths = narrow_widths(name, device) if width == "narrow" else {}
    return Config.from_name(name, n_layer=layers, **{**widths, **changes})


def make_tokens(model: Any, shape: tuple[int, ...], device: str, seed: int = SEED) -> torch.Tensor:
    """Returns tokens of a model's vocabulary. A seed gives the same tokens in every process."""
    return draw_tokens(model.config.padded_vocab_size, shape, device, seed)


def draw_tokens(vocabulary: int, shape: tuple[int, ...], device: str, seed: int) -> torch.Tensor:
    """Returns tokens of a vocabulary of this size. A seed gives the same tokens in every process."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, shape, generator=generator).to(device)


def narrow_widths(name: str, device: str) -> dict[str, int]:
    """Returns small widths for a litgpt configuration, with the same number of heads per query group."""
    from litgpt import Config

    full = Config.from_name(name)
    embedding, heads, intermediate, vocabulary = NARROW[device]
    return {
        "n_embd": embedding,
        "n_head": heads,
        "head_size": embedding // heads,
        "n_query_groups": max(1, heads * full.n_query_groups // full.n_head),
        "intermediate_size": intermediate,
        "padded_vocab_size": vocabulary,
    }
