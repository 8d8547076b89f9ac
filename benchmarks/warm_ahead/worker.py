"""Fills a store as another version of the compiler would have: a training step whose keys nobody else has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fusioncache
from benchmarks.common.models import make_model
from benchmarks.common.processes import serve
from benchmarks.common.spec import ModelSpec
from benchmarks.common.steps import synchronize
from benchmarks.common.thunder_jit import jit
from fusioncache.backends.api import backend_class


def fill(options: Mapping[str, Any]) -> int:
    """Takes a training step, and returns how many templates were compiled."""
    spec = ModelSpec(**options)
    backend = backend_class(spec.backend)
    environment = backend.environment
    backend.environment = lambda self: {**environment(self), "versions": "another"}  # type: ignore[method-assign]
    cache = fusioncache.Cache(record=False)
    transform = fusioncache.FusionCache(cache=cache, backend=spec.backend, programs=False, jobs=0)
    model, example = make_model(spec)
    jit(model, spec.backend, transform)(example).sum().backward()
    synchronize(spec.device)
    return transform.stats().compiles


if __name__ == "__main__":
    serve(fill)
