"""The models whose compile time is measured, with their inputs, from a fixed seed."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.common.spec import NARROW, ModelSpec

_SEED = 2916

_LLAMA = "Llama-2-7b-hf"


class Residual(nn.Module):
    """The case of NVIDIA/Fuser#2916: two residual adds a layer, norm = tanh, attention = mlp = weight @ x."""

    def __init__(self, layers: int, size: int):
        super().__init__()
        # Small enough that values neither explode nor vanish in 128 layers.
        scale = 0.1 * size**-0.5
        self.weights = nn.ParameterList(nn.Parameter(scale * torch.randn(size, size)) for _ in range(2 * layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds to the stream twice a layer."""
        for weight in self.weights:
            x = x + weight @ torch.tanh(x)
        return x


def make_model(spec: ModelSpec) -> tuple[nn.Module, torch.Tensor]:
    """Returns the model on its device, and its input."""
    torch.manual_seed(_SEED)
    dtype = getattr(torch, spec.dtype)
    if spec.model == "residual":
        model: nn.Module = Residual(spec.layers, spec.size)
        example = torch.randn(spec.size, spec.size).to(dtype)
    else:
        model, example = _llama(spec)
    model = model.to(device=spec.device, dtype=dtype).requires_grad_(spec.grad)
    return model, example.to(spec.device)


def _llama(spec: ModelSpec) -> tuple[nn.Module, torch.Tensor]:
    from litgpt import GPT, Config

    config = Config.from_name(_LLAMA, n_layer=spec.layers, block_size=128, **narrow_widths(_LLAMA, spec.device))
    tokens = torch.randint(0, config.padded_vocab_size, (2, 64))
    return GPT(config), tokens


def make_llama(spec: ModelSpec, *, narrow: bool, tokens: tuple[int, int]) -> tuple[nn.Module, torch.Tensor]:
    """Returns Llama-2-7b of so many layers, narrow or of its own width, made on its device, and so many tokens."""
    from litgpt import GPT, Config

    torch.manual_seed(_SEED)
    widths = narrow_widths(_LLAMA, spec.device) if narrow else {}
    config = Config.from_name(_LLAMA, n_layer=spec.layers, **{**widths, "block_size": tokens[1]})
    with torch.device(spec.device):
        model = GPT(config).to(getattr(torch, spec.dtype)).requires_grad_(spec.grad)
        return model, torch.randint(0, config.padded_vocab_size, tokens)


def narrow_widths(name: str, device: str) -> dict[str, int]:
    """Returns small widths for a configuration of litgpt, with as many heads to a query group as it has."""
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
