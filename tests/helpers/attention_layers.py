"""Layers of attention, models that have them with cuDNN's attention, and their training steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import thunder
import torch
from stored_programs import compile_anew
from torch.nn.functional import scaled_dot_product_attention

import fusioncache


class Attention(torch.nn.Module):
    """A layer of attention with these options; ``mask=True`` is a transposed mask of bits in place of ``is_causal``."""

    def __init__(self, heads: int, size: int, *, bias: bool = True, mask: bool = False, **options: Any):
        super().__init__()
        torch.manual_seed(0)
        self.heads, self.size, self.options = heads, size, options
        self.project = torch.nn.Linear(heads * size, 3 * heads * size, bias=bias)
        self.register_buffer("mask", torch.ones(64, 64, dtype=torch.bool).triu().t() if mask else None)

    def project_heads(self, x: torch.Tensor) -> torch.Tensor:
        """Returns queries, keys and values, each of the shape (rows, heads, length, size)."""
        return self.project(x).view(*x.shape[:2], 3, self.heads, self.size).permute(2, 0, 3, 1, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        parts, length = self.project_heads(x), x.shape[1]
        if self.mask is not None:
            mask = self.mask[None, None, :length, :length]
        return scaled_dot_product_attention(parts[0], parts[1], parts[2], mask, **self.options)


def turn(heads: torch.Tensor, half: int) -> torch.Tensor:
    """Adds to each head, of which ``half`` is half the size, what its elements become by a quarter of a turn."""
    return torch.cat((-heads[..., half:], heads[..., :half]), -1) + heads


def compile_with_cudnn(model: Any, directory: Path, backend: str = "eager", **options: Any) -> tuple[Any, Any]:
    return compile_anew(
        model, directory, backend, jit={"executors": fusioncache.executors(attention="cudnn")}, **options
    )


def take_step(
    call: Any, model: Any, length: int, gradient: Callable[[torch.Tensor], torch.Tensor] = torch.ones_like
) -> list[torch.Tensor]:
    """Returns the output for a random input of this length, the input's gradient, and those of the parameters."""
    torch.manual_seed(length)
    model.zero_grad(set_to_none=True)
    weight = model.project.weight
    x = torch.randn(2, length, weight.shape[1], device=weight.device, dtype=weight.dtype, requires_grad=True)
    output = call(x)
    output.backward(gradient(output))
    return [output.detach(), x.grad, *(each.grad.clone() for each in model.parameters())]


def count_saved(compiled: Any) -> int:
    return len(thunder.last_traces(compiled)[-1].bound_symbols[-1].args[1][0])
