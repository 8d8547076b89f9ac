"""Configures Thunder to use one backend, in the same way with and without fusioncache."""

from __future__ import annotations

from typing import Any

import thunder
from thunder.extend import get_executor

import fusioncache
from fusioncache.fusion_cache import Attention
from fusioncache.transform.executors import NAME


def executors(backend: str, attention: Attention = "thunder") -> list[Any]:
    """Returns the executors for ``thunder.jit``, the same in all modes, so that only the transform differs.

    Args:
        backend: the compiler of regions.
        attention: as for ``fusioncache.executors``.
    """
    found = fusioncache.executors(attention=attention)
    if backend == "nvfuser" or any(one.name == NAME for one in found):
        return found
    return [*(one for one in found if one.name != "nvfuser"), get_executor(NAME)]


def jit(
    function: Any, backend: str, transform: fusioncache.FusionCache | None = None, attention: Attention = "thunder"
) -> Any:
    """Returns a model or a function, compiled with Thunder."""
    return thunder.jit(function, executors=executors(backend, attention), transforms=[transform] if transform else [])


def make_transform(backend: str, **options: Any) -> fusioncache.FusionCache:
    """Returns a transform with a cache of its own."""
    return fusioncache.FusionCache(backend=backend, cache=fusioncache.Cache(), **options)
