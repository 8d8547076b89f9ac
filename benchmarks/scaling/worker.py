"""One point of the scaling benchmark, measured in a process of its own.

What the seconds mean. ``first_step`` is the wall time from before ``thunder.jit`` to the end of the first forward
pass, and of the backward pass with ``--grad``, synchronized. It has five parts:

- ``canonicalize``: turning regions into templates, keys and plans, as ``stats().canonicalize_seconds`` counts it.
- ``trace``: Thunder's own tracing and passes, backward trace included: ``thunder.jit`` itself, and from the start of
  the first call to the start of the prologue that Thunder runs once all traces are made; less ``canonicalize``.
- ``compile``: the backend's compilations, each up to the end of its first execution.
- ``load``: finding and loading what an earlier process left in the store.
- ``run``: what remains: execution and autograd.

``startup`` lies before all that: imports, the CUDA context, and the first compilation of a process, with a function
that has nothing in common with the model. ``steady``, if asked for, lies after it: ``benchmarks/common/steps.py``.
"""

from __future__ import annotations

import time

_START = time.perf_counter()

import hashlib  # noqa: E402
from collections.abc import Mapping  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from thunder.core.proxies import TensorProxy  # noqa: E402

import fusioncache  # noqa: E402
from benchmarks.common.choices import describe_choices  # noqa: E402
from benchmarks.common.counting import Counter, count_compiles, use_backend  # noqa: E402
from benchmarks.common.models import make_model  # noqa: E402
from benchmarks.common.processes import serve  # noqa: E402
from benchmarks.common.rematerialization import recompute_sums  # noqa: E402
from benchmarks.common.steps import measure_steps, synchronize, warm_up  # noqa: E402
from benchmarks.common.tensors import cotangent, digest, name_results  # noqa: E402
from benchmarks.common.thunder_jit import find_fusions, jit, make_transform, read_tracing_seconds  # noqa: E402
from benchmarks.scaling.spec import KEPT, NEED_NVFUSER, Spec  # noqa: E402


@dataclass(frozen=True, slots=True)
class _Step:
    """What a first step left: what was compiled, its output, and seconds."""

    compiled: Any
    output: torch.Tensor
    traced: float
    total: float


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the counts, seconds and checksum of one point."""
    spec = Spec(**options)
    # So that attention's backward pass, too, gives the same bits every time.
    torch.use_deterministic_algorithms(True, warn_only=True)
    use_backend(spec.backend)
    with recompute_sums(spec.recompute):
        warm_up(lambda function: jit(function, spec.backend, _transform(spec)), spec.device, spec.dtype, spec.grad)
        startup = time.perf_counter() - _START
        model, example = make_model(spec)
        counter = count_compiles(spec.backend, lru=spec.mode in NEED_NVFUSER)
        transform = _transform(spec)
        step = _first_step(spec, model, example, transform)
    result = _result(spec, model, transform, counter, step, startup)
    if spec.steps:
        result["steady"] = _steady(spec, model, example, step.compiled)
        result["steady"]["compiles"] = _compiles(transform, counter) - result["compiles"]
    return result


def _first_step(spec: Spec, model: Any, example: torch.Tensor, transform: fusioncache.FusionCache | None) -> _Step:
    if spec.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    synchronize(spec.device)
    start = time.perf_counter()
    compiled = jit(model, spec.backend, transform)
    jitted = time.perf_counter()
    output = compiled(example)
    if spec.grad:
        output.backward(cotangent(output))
    synchronize(spec.device)
    total = time.perf_counter() - start
    return _Step(compiled, output, jitted - start + read_tracing_seconds(compiled), total)


def _steady(spec: Spec, model: Any, example: torch.Tensor, compiled: Any) -> dict[str, Any]:
    """Times later steps. They leave other gradients than the first."""
    return measure_steps(
        lambda: compiled(example),
        (lambda output: output.backward(cotangent(output))) if spec.grad else None,
        lambda: model.zero_grad(set_to_none=True),
        device=spec.device,
        steps=spec.steps,
    )


def _result(spec: Spec, model: Any, transform: Any, counter: Counter, step: _Step, startup: float) -> dict[str, Any]:
    stats = transform.stats() if transform else fusioncache.Stats()
    fusions = find_fusions(step.compiled)
    tensors = {name: digest(tensor) for name, tensor in name_results(model, step.output).items()}
    compile_seconds = stats.compile_seconds + counter.seconds
    seconds = {
        "trace": step.traced - stats.canonicalize_seconds,
        "canonicalize": stats.canonicalize_seconds,
        "compile": compile_seconds,
        "load": stats.load_seconds,
        "run": step.total - step.traced - compile_seconds - stats.load_seconds,
        "first_step": step.total,
        "startup": startup,
    }
    return {
        "regions": stats.regions if transform else len(fusions),
        "widest": max((_width(fusion) for fusion in fusions), default=0),
        "templates": stats.templates if transform else None,
        "compiles": _compiles(transform, counter),
        "loads": stats.loads if transform else None,
        "unkept": dict(stats.unkept),
        "bypasses": dict(stats.bypasses),
        "choices": describe_choices(transform.choices() if transform else ()),
        "seconds": {phase: round(value, 6) for phase, value in seconds.items()},
        "checksum": hashlib.sha256("".join(tensors.values()).encode()).hexdigest(),
        "tensors": tensors,
        "peak": torch.cuda.max_memory_allocated() if spec.device == "cuda" else None,
    }


def _compiles(transform: fusioncache.FusionCache | None, counter: Counter) -> int:
    return counter.compiles + (transform.stats().compiles if transform else 0)


def _width(fusion: Any) -> int:
    return sum(isinstance(argument, TensorProxy) for argument in fusion.flat_args)


def _transform(spec: Spec) -> fusioncache.FusionCache | None:
    if spec.mode not in (*KEPT, "own"):
        return None
    return make_transform(spec.backend, **({"recompute": "residual"} if spec.mode == "own" else {}))


if __name__ == "__main__":
    serve(measure)
