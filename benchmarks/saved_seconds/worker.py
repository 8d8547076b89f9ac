"""One process of ``benchmarks/saved_seconds``: a first step, its seconds, and what ``stats()`` says of them.

The clock of the whole process is replaced before fusioncache is imported, so that what is reported and what is real
are seconds of the same clock.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.common.processes import serve
from benchmarks.saved_seconds.spec import OURS, SHORTCUTS, STARTS, ProcessSpec


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the seconds of the step without the compiler's start, those of the start, and what is reported."""
    spec = ProcessSpec.read(options)
    if spec.clock == "cpu":
        time.perf_counter = _read_cpu_seconds
    from benchmarks.common.counting import use_backend

    use_backend(spec.backend)
    if spec.processor:
        _know_processor()
    said = _measure_ours(spec) if spec.way == OURS else _measure_alone(spec)
    processor = _find_processor(spec)
    if spec.processor not in ("", processor):
        raise ValueError(f"the processor can do {processor} here, and {spec.processor} in another process")
    return {**said, "processor": processor}


def _measure_alone(spec: ProcessSpec) -> dict[str, Any]:
    started = _start(spec)
    if spec.way == STARTS:
        return {"start": started, "step": 0.0}
    if spec.way == SHORTCUTS:
        import fusioncache.tracing

        fusioncache.tracing.install()
    from benchmarks.common.counting import count_compiles

    counter = count_compiles(spec.backend)
    return {"start": started, "step": _take_step(spec, None), "compiling": counter.seconds}


def _measure_ours(spec: ProcessSpec) -> dict[str, Any]:
    import fusioncache

    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend=spec.backend, jobs=0)
    total, stats = _take_step(spec, transform), transform.stats()
    started = sum(stats.start_seconds.values())
    names = ("saved_seconds", "compile_seconds", "load_seconds", "loaded_compile_seconds", "loaded_program_seconds")
    counts = ("regions", "templates", "hits", "compiles", "loads", "programs_loaded")
    reported = {name: getattr(stats, name) for name in (*names, *counts)}
    own = {"canonicalize_seconds": stats.canonicalize_seconds, "program_seconds": dict(stats.program_seconds)}
    return {"start": started, "step": total - started, "reported": reported | own}


def _take_step(spec: ProcessSpec, transform: Any) -> float:
    """Takes a first training step; returns its seconds, tracing included."""
    from benchmarks.common.steps import synchronize
    from benchmarks.common.thunder_jit import jit

    model, inputs = _make_model(spec)
    synchronize(spec.device)
    begun = time.perf_counter()
    jit(model, spec.backend, transform)(*inputs).sum().backward()
    synchronize(spec.device)
    return time.perf_counter() - begun


def _start(spec: ProcessSpec) -> float:
    """Starts the compiler, and Dynamo, which only Thunder alone uses; returns the seconds."""
    import thunder  # noqa: F401

    from fusioncache.backends.api import make_backend
    from fusioncache.backends.inductor.backend import inductor_function

    begun = time.perf_counter()
    make_backend(spec.backend).start(spec.device, joined=False)
    if spec.backend == "inductor":
        inductor_function(lambda x: [torch.sigmoid(x) - 3])(torch.ones(3, 7, device=spec.device))
    return time.perf_counter() - begun


def _know_processor() -> None:
    """Has TorchInductor believe what the processor says that it can do: to try that out takes ten seconds of CPU time.

    It is part of the start, which no figure of a step has, and one process measures it.
    """
    from torch._inductor.cpu_vec_isa import VecISA

    VecISA.check_build = lambda self, code: True  # type: ignore[method-assign]


def _find_processor(spec: ProcessSpec) -> str:
    if spec.device != "cpu" or spec.backend != "inductor":
        return "-"
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    return str(pick_vec_isa())


def _make_model(spec: ProcessSpec) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    if spec.model == "gelu-stack":
        layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4)]
        return torch.nn.Sequential(*layers).to(spec.device), (torch.randn(8, 64, device=spec.device),)
    if spec.model == "nothing-repeats":
        functions = (torch.nn.GELU(), torch.nn.SiLU(), torch.nn.Tanh(), torch.nn.ELU())
        widths = (64, 48, 40, 32, 24)
        pairs = zip(widths, widths[1:], functions, strict=False)
        layers = [torch.nn.Sequential(torch.nn.Linear(*sizes), function) for *sizes, function in pairs]
        return torch.nn.Sequential(*layers).to(spec.device), (torch.randn(8, 64, device=spec.device),)
    from benchmarks.zoo.make import make

    workload = make(spec.model, spec.layers, spec.device)
    return workload.model, workload.inputs


def _read_cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of those that it started and waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    serve(measure)
