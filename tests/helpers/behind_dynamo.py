"""Models behind Dynamo, with regions that run op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

import fusioncache

_NONE: Mapping[str, Any] = MappingProxyType({})


def compile_behind_dynamo(
    model: Callable,
    store: Path | bool | None = False,
    graphs: bool = False,
    own: Mapping[str, Any] = _NONE,
    **options: object,
) -> tuple[Callable, fusioncache.FusionCache]:
    """The model under ``thunderfx``, with regions that run op by op.

    Args:
        model: to compile.
        store: of the cache.
        graphs: as of ``FusionCache``.
        own: more options of ``FusionCache``.
        options: of ``thunderfx``.
    """
    from thunder.dynamo import thunderfx

    torch._dynamo.reset()
    cache = fusioncache.Cache(store=store, record=False)
    transform = fusioncache.FusionCache(cache=cache, backend="eager", graphs=graphs, **own)
    return thunderfx(model, executors=fusioncache.executors(), transforms=[transform], **options), transform
