"""Takes steps one way, and says what each part of a later one takes of the host's time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from benchmarks.common.processes import serve
from benchmarks.common.spec import ModelSpec

WARM_UP = 10
"""How many steps come before those that count: by then all is compiled, and Thunder's prologue was rewritten."""


def measure(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Returns milliseconds, medians of all steps that count, and how many Python functions a step calls."""
    import torch

    from benchmarks.common.models import make_model
    from benchmarks.common.steps import synchronize

    torch.set_num_threads(1)  # others wait for each other, and narrow layers have nothing for them to do
    way, spec = argument["way"], ModelSpec(**argument["spec"])
    model, example = make_model(spec)
    compiled, statistics = _compile(way, model, spec)
    samples: dict[str, list[float]] = {"forward": [], "backward": []}
    if statistics:
        samples["prologue"] = []

    def step() -> None:
        synchronize(spec.device)
        start = time.perf_counter_ns()
        output = compiled(example)
        samples["forward"].append((time.perf_counter_ns() - start) / 1e6)
        gradient = torch.ones_like(output)
        synchronize(spec.device)
        start = time.perf_counter_ns()
        output.backward(gradient)
        samples["backward"].append((time.perf_counter_ns() - start) / 1e6)
        if statistics:
            taken = statistics.last_prologue_execution_stop - statistics.last_prologue_execution_start
            samples["prologue"].append(taken / 1e6)

    for _ in range(WARM_UP + spec.steps):
        step()
    found = {name: round(median(taken[WARM_UP:]), 4) for name, taken in samples.items()}
    calls = _count_calls(step)
    return {"milliseconds": {**found, "step": round(found["forward"] + found["backward"], 4)}, "calls": calls}


def _compile(way: str, model: Any, spec: ModelSpec) -> tuple[Callable[..., Any], Any]:
    """Returns the compiled model, and Thunder's statistics of its calls if it has any."""
    import torch

    if way == "torch.compile":
        return torch.compile(model, backend="aot_eager" if spec.backend == "eager" else "inductor"), None
    import thunder

    from benchmarks.common.counting import use_backend
    from benchmarks.common.thunder_jit import jit, make_transform
    from fusioncache.prologue import quickening

    use_backend(spec.backend)
    if way == "own prologue":
        quickening.CALLS = sys.maxsize
    compiled = jit(model, spec.backend, None if way == "thunder" else make_transform(spec.backend))
    return compiled, thunder.compile_stats(compiled)


def _count_calls(step: Callable[[], None]) -> int:
    """Returns how many Python functions are called in this thread in one step."""
    calls = 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(None)
    return calls


if __name__ == "__main__":
    serve(measure)
