"""A training step with fusioncache, taken apart: what its first call compiles and loads, and how long later ones take.

Compiling includes each compilation's first execution, as nvFuser compiles then. ``startup`` lies before the first step:
imports, the model, the CUDA context. Nothing was compiled before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.common.models import make_model
from benchmarks.common.spec import ModelSpec
from benchmarks.common.steps import synchronize
from benchmarks.common.tensors import digest_all, name_results
from benchmarks.common.thunder_jit import jit, make_transform


def measure(spec: ModelSpec, began: float, ready: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Returns seconds, counts and a digest of the bits.

    Args:
        spec: the model. All its steps but the first are timed after as many that are not.
        began: when the process did, by ``time.perf_counter``.
        ready: called before the first step.
    """
    model, example = make_model(spec)
    synchronize(spec.device)
    transform = make_transform(spec.backend)
    compiled = jit(model, spec.backend, transform)
    ready()
    startup, start = time.perf_counter() - began, time.perf_counter()
    output = _step(spec, model, compiled, example)
    first_step = time.perf_counter() - start
    stats = transform.stats()
    return {
        "seconds": {
            "first_step": first_step,
            "compile": stats.compile_seconds,
            "load": stats.load_seconds,
            "startup": startup,
        },
        "regions": stats.regions,
        "compiles": stats.compiles,
        "loads": stats.loads,
        "bypasses": dict(stats.bypasses),
        "unkept": dict(stats.unkept),
        "digest": digest_all(name_results(model, output)),
        "step_ms": _later(spec, model, compiled, example),
        "compiles_later": transform.stats().compiles - stats.compiles,
    }


def _step(spec: ModelSpec, model: nn.Module, compiled: Any, example: torch.Tensor) -> torch.Tensor:
    model.zero_grad(set_to_none=True)
    output = compiled(example)
    if spec.grad:
        output.float().square().mean().backward()
    synchronize(spec.device)
    return output


def _later(spec: ModelSpec, model: nn.Module, compiled: Any, example: torch.Tensor) -> float | None:
    """Returns the median of later steps, in milliseconds."""
    times = []
    for _ in range(2 * spec.steps):
        start = time.perf_counter()
        _step(spec, model, compiled, example)
        times.append(time.perf_counter() - start)
    return 1e3 * median(times[spec.steps :]) if times else None
