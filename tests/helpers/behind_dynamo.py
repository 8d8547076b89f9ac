"""Models behind Dynamo, with regions that run op by op."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

import fusioncache


class OwnNet(torch.nn.Module):
    """Thunder lacks ``sinc``, and Dynamo ends a graph where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sinc(self.linear(x)) * 2.0
        torch._dynamo.graph_break()
        return torch.tanh(y + self.linear(x))


def compile_behind_dynamo(
    model: Callable, store: Path | bool | None = False, graphs: bool = False, **options: object
) -> tuple[Callable, fusioncache.FusionCache]:
    """Returns the model under ``thunderfx``, with regions that run op by op, and its transform.

    Args:
        model: to compile.
        store: of the cache.
        graphs: as of ``FusionCache``.
        options: of ``thunderfx``.
    """
    from thunder.dynamo import thunderfx

    torch._dynamo.reset()
    cache = fusioncache.Cache(store=store, record=False)
    transform = fusioncache.FusionCache(cache=cache, backend="eager", graphs=graphs)
    return thunderfx(model, executors=fusioncache.executors(), transforms=[transform], **options), transform
