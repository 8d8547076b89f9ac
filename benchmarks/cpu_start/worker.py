"""One process of ``benchmarks/cpu_start``: the first step of a model and later ones, in seconds of processors."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.common.processes import serve
from benchmarks.zoo import Workload, make

_WARM_UP, _ROUNDS, _STEPS = 5, 10, 5


def measure(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the seconds of the first step, of this process and of those that it waited for, and later steps."""
    import thunder  # noqa: F401  # what is imported before is no part of a step

    torch.set_num_threads(1)
    work = make(argument["model"], argument["layers"])
    before, start = _read_clocks(), time.perf_counter()
    compiled, count = _compile(argument["way"], work)
    step = _make_step(compiled, work)
    step()
    own, children = (after - first for after, first in zip(_read_clocks(), before, strict=True))
    point = {"own_s": own, "children_s": children, "wall_s": time.perf_counter() - start, **count()}
    for _ in range(_WARM_UP):
        step()
    return {**point, "step_ms": min(_time_steps(step) for _ in range(_ROUNDS)) * 1e3}


def _time_steps(step: Callable[[], None]) -> float:
    start = time.process_time()
    for _ in range(_STEPS):
        step()
    return (time.process_time() - start) / _STEPS


def _make_step(compiled: Callable[..., Any], work: Workload) -> Callable[[], None]:
    def step() -> None:
        work.loss(compiled(*work.inputs)).backward()
        work.model.zero_grad(set_to_none=True)

    return step


def _compile(way: str, work: Workload) -> tuple[Callable[..., Any], Callable[[], dict[str, int]]]:
    """Returns the compiled model, and what counts what was compiled."""
    import thunder

    if way == "torch.compile":
        return torch.compile(work.model), dict
    if way.startswith("thunder"):
        from thunder.executors.torch_compile import torch_compile_ex

        fusing = [torch_compile_ex] if way == "thunder-compiling" else []
        return work.compile([*thunder.get_default_executors(), *fusing]), dict
    import fusioncache

    backend = "eager" if way == "fusioncache-eager" else "auto"
    transform = fusioncache.FusionCache(jobs=0, backend=backend)

    def count() -> dict[str, int]:
        stats = transform.stats()
        counts = "regions", "templates", "compiles", "loads"
        return {name: getattr(stats, name) for name in counts}

    return work.compile(fusioncache.executors(), [transform]), count


def _read_clocks() -> tuple[float, float]:
    """Returns the seconds of processors that this process used so far, and those of processes that it waited for."""
    own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime


if __name__ == "__main__":
    serve(measure)
