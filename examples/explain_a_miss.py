"""Finds the layer that somebody changed: it has a template of its own, and its miss says why.

    python examples/explain_a_miss.py

The same question is asked of a run that is over with: fusioncache diff, and fusioncache explain ID.
"""

from __future__ import annotations

import thunder
import torch

import fusioncache


class Block(torch.nn.Module):
    """A layer with a norm, a product and a residual add."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.linear = torch.nn.Linear(width, width, bias=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next value of the residual stream."""
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return x + self.linear(torch.nn.functional.gelu(normed))


def run(cache: fusioncache.Cache, eps: list[float], explain: bool = False) -> fusioncache.Stats:
    """Runs a model with one layer for each eps. Nothing needs to be compiled to see what is shared."""
    model = torch.nn.Sequential(*(Block(32, value) for value in eps))
    transform = fusioncache.FusionCache(cache=cache, backend="eager", explain=explain)
    thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])(torch.randn(4, 32))
    return transform.stats()


def main() -> None:
    """Runs the model as it was, then as it is; the second run explains its misses on stderr."""
    cache = fusioncache.Cache()
    before = run(cache, [1e-5] * 6)
    print(f"as it was: {before.regions} regions, {before.misses} new templates")
    after = run(cache, [1e-5, 1e-5, 1e-5, 3e-4, 1e-5, 1e-5], explain=True)
    print(f"as it is:  {after.regions} regions, {after.misses} new templates")


if __name__ == "__main__":
    main()
