"""Models behind Dynamo, with regions that run op by op."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

import fusioncache


def compile_behind_dynamo(
    model: Callable, store: Path | bool | None = False, graphs: bool = False, **options: object
) -> tuple[Callable, fusioncache.FusionCache]:
    """The model under ``thunderfx``, with regions that run op by op."""
    from thunder.dynamo import thunderfx

    torch._dynamo.reset()
    cache = fusioncache.Cache(store=store, record=False)
    transform = fusioncache.FusionCache(cache=cache, backend="eager", graphs=graphs)
    return thunderfx(model, executors=fusioncache.executors(), transforms=[transform], **options), transform
