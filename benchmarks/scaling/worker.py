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
that has nothing in common with the model. ``steady``, if asked for, lies after it: ``benchmarks/steady.py``.
"""

from __future__ import annotations

import time

_START = time.perf_counter()

import hashlib  # noqa: E402
from collections.abc import Iterator, Mapping  # noqa: E402
from contextlib import nullcontext  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from typing import Any  # noqa: E402

import thunder  # noqa: E402
import torch  # noqa: E402
from thunder.core.proxies import TensorProxy  # noqa: E402

import fusioncache  # noqa: E402
from benchmarks.common.choices import described  # noqa: E402
from benchmarks.common.counting import Counter, count_nvfuser, count_regions  # noqa: E402
from benchmarks.common.executors import compile_regions_with, executors  # noqa: E402
from benchmarks.common.models import make_model  # noqa: E402
from benchmarks.common.processes import serve  # noqa: E402
from benchmarks.common.recompute import recomputing  # noqa: E402
from benchmarks.common.steady import measure_steps, synchronize  # noqa: E402
from benchmarks.scaling.spec import KEPT, NEED_NVFUSER, Spec  # noqa: E402


@dataclass(frozen=True, slots=True)
class _Step:
    """A first step: what was compiled, its output, and seconds."""

    compiled: Any
    output: torch.Tensor
    traced: float
    total: float


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """The counts, seconds and checksum of one point."""
    spec = Spec(**options)
    # So that attention's backward pass, too, gives the same bits every time.
    torch.use_deterministic_algorithms(True, warn_only=True)
    compile_regions_with(spec.backend)
    with recomputing() if spec.recompute else nullcontext():
        _warm_up(spec)
        startup = time.perf_counter() - _START
        model, example = make_model(spec)
        counter = Counter()
        if spec.backend == "nvfuser":
            count_nvfuser(counter, lru=spec.mode in NEED_NVFUSER)
        else:
            count_regions(counter, spec.backend)
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
    compiled = thunder.jit(model, executors=executors(spec.backend), transforms=[transform] if transform else [])
    jitted = time.perf_counter()
    output = compiled(example)
    if spec.grad:
        output.backward(_cotangent(output))
    synchronize(spec.device)
    total = time.perf_counter() - start
    statistics = thunder.compile_stats(compiled)
    passes = (statistics.last_prologue_execution_start - statistics.last_trace_host_start) / 1e9
    return _Step(compiled, output, jitted - start + passes, total)


def _steady(spec: Spec, model: Any, example: torch.Tensor, compiled: Any) -> dict[str, Any]:
    """Later steps. They leave other gradients than the first."""
    return measure_steps(
        lambda: compiled(example),
        (lambda output: output.backward(_cotangent(output))) if spec.grad else None,
        lambda: model.zero_grad(set_to_none=True),
        device=spec.device,
        steps=spec.steps,
    )


def _cotangent(output: torch.Tensor) -> torch.Tensor:
    """Where a backward pass starts. Not from ones: errors that cancel in a sum would not be noticed."""
    return torch.linspace(-1, 1, output.numel(), device=output.device).reshape(output.shape).to(output.dtype)


def _result(spec: Spec, model: Any, transform: Any, counter: Counter, step: _Step, startup: float) -> dict[str, Any]:
    stats = transform.stats() if transform else fusioncache.Stats()
    fusions = list(_fusions(step.compiled))
    tensors = dict(_digests(model, step.output))
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
        "choices": described(transform.choices() if transform else ()),
        "seconds": {phase: round(value, 6) for phase, value in seconds.items()},
        "checksum": hashlib.sha256("".join(tensors.values()).encode()).hexdigest(),
        "tensors": tensors,
        "peak": torch.cuda.max_memory_allocated() if spec.device == "cuda" else None,
    }


def _compiles(transform: fusioncache.FusionCache | None, counter: Counter) -> int:
    return counter.compiles + (transform.stats().compiles if transform else 0)


def _fusions(compiled: Any) -> Iterator[Any]:
    """The fused calls of what runs, forward then backward."""
    for traces in (thunder.last_traces(compiled), thunder.last_backward_traces(compiled)):
        if traces:
            yield from (bound_symbol for bound_symbol in traces[-1].bound_symbols if bound_symbol.sym.is_fusion)


def _width(fusion: Any) -> int:
    return sum(isinstance(argument, TensorProxy) for argument in fusion.flat_args)


def _digests(model: torch.nn.Module, output: torch.Tensor) -> Iterator[tuple[str, str]]:
    """A digest of the bytes of the output and of each gradient, by name."""
    yield "output", _digest(output)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield f"gradient of {name}", _digest(parameter.grad)


def _digest(tensor: torch.Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    content = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    content.update(flat.view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def _transform(spec: Spec) -> fusioncache.FusionCache | None:
    if spec.mode not in (*KEPT, "own"):
        return None
    recompute: Any = {"recompute": "residual"} if spec.mode == "own" else {}
    return fusioncache.FusionCache(backend=spec.backend, cache=fusioncache.Cache(), **recompute)


def _warm_up(spec: Spec) -> None:
    """Pays the one-time costs of a process, with another operation and another shape than any model's."""
    x = torch.ones(3, 7, device=spec.device, dtype=getattr(torch, spec.dtype), requires_grad=spec.grad)
    transform = _transform(spec)
    function = thunder.jit(
        lambda x: torch.sigmoid(x) @ torch.cos(x).mT,
        executors=executors(spec.backend),
        transforms=[transform] if transform else [],
    )
    output = function(x)
    if spec.grad:
        output.backward(_cotangent(output))
    synchronize(spec.device)


if __name__ == "__main__":
    serve(measure)
