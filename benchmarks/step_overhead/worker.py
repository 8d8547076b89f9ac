"""Takes steps one way, and says what each part of a later one takes of the host's time, and what is called in it."""

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
    """Returns milliseconds, medians of all steps that count, bytes, and counts of what one step calls.

    Of these ``python`` are functions of Python, ``torch`` functions of torch's that are written in C++, ``operations``
    what of these came to torch's dispatcher, and ``symbols`` what is in Thunder's final traces.
    """
    import torch

    from benchmarks.common.models import make_model
    from benchmarks.common.steps import synchronize

    torch.set_num_threads(1)  # others wait for each other, and narrow layers have nothing for them to do
    way, spec = argument["way"], ModelSpec(**argument["spec"])
    model, example = make_model(spec)
    for parameter in model.parameters():  # what a graph returns may not stay there, where others are added to it
        parameter.grad = torch.zeros_like(parameter)
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
    found["step"] = round(found["forward"] + found["backward"], 4)
    pairs = zip(samples["forward"], samples["backward"], strict=True)
    found["fastest"] = round(min(list(map(sum, pairs))[WARM_UP:]), 4)
    found["wall"], reserved = _measure_many(compiled, example, spec)
    counts = {**_count_calls(step), "operations": _count_operations(step), **_count_symbols(statistics)}
    return {"milliseconds": found, "reserved_bytes": reserved, "counts": counts}


def _measure_many(compiled: Callable[..., Any], example: Any, spec: ModelSpec) -> tuple[float, int | None]:
    """Returns milliseconds of a step of many, none of which is waited for, and the bytes that torch reserves for these.

    Gradients are added up in a tensor of each parameter's, as in the other steps.
    """
    import torch

    from benchmarks.common.steps import synchronize

    if spec.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    synchronize(spec.device)
    start = time.perf_counter_ns()
    for _ in range(spec.steps):
        output = compiled(example)
        output.backward(torch.ones_like(output))
    synchronize(spec.device)
    taken = round((time.perf_counter_ns() - start) / 1e6 / spec.steps, 4)
    return taken, torch.cuda.max_memory_reserved() if spec.device == "cuda" else None


def _compile(way: str, model: Any, spec: ModelSpec) -> tuple[Callable[..., Any], Any]:
    """Returns the compiled model, and Thunder's statistics of its calls if it has any."""
    import torch

    if way == "torch.compile":
        return torch.compile(model, backend="aot_eager" if spec.backend == "eager" else "inductor"), None
    if way == "reduce-overhead":
        return torch.compile(model, mode="reduce-overhead"), None
    import thunder
    from thunder.transforms.cudagraph import CUDAGraphTransform

    from benchmarks.common.counting import use_backend
    from benchmarks.common.thunder_jit import executors, make_transform
    from fusioncache.prologue import quickening

    use_backend(spec.backend)
    if way == "own prologue":
        quickening.CALLS = sys.maxsize
    lean = "thunder" if way == "own calls" else "auto"
    ours = [] if way == "thunder" else [make_transform(spec.backend, graphs=way == "graphs", lean=lean)]
    more = [CUDAGraphTransform()] if way == "thunder graphs" else []
    compiled = thunder.jit(model, executors=executors(spec.backend), transforms=[*ours, *more])
    return compiled, thunder.compile_stats(compiled)


def _count_calls(step: Callable[[], None]) -> dict[str, int]:
    """Returns how many functions of Python, and of torch's in C++, are called in this thread in one step."""
    counts = {"python": 0, "torch": 0}

    def count(frame: Any, event: str, function: Any) -> None:
        if event == "call":
            counts["python"] += 1
        elif event == "c_call" and _is_of_torch(function):
            counts["torch"] += 1

    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(None)
    return counts


def _is_of_torch(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    owner = owner if isinstance(owner, type) else type(owner)
    modules = getattr(function, "__module__", None), getattr(owner, "__module__", None)
    return any(str(module).partition(".")[0] == "torch" for module in modules)


def _count_operations(step: Callable[[], None]) -> int:
    """Returns how many operations come to torch's dispatcher in one step."""
    from torch.utils._python_dispatch import TorchDispatchMode

    count = 0

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal count
            count += 1
            return function(*args, **(kwargs or {}))

    with Count():
        step()
    return count


def _count_symbols(statistics: Any) -> dict[str, int]:
    """Returns how many statements Thunder's final traces have, beside those that take arguments apart or let go."""
    if statistics is None:
        return {}
    traces = [each[-1] for each in (statistics.last_traces, statistics.last_backward_traces) if each]
    others = ("unpack", "python_del", "python_return", "comment", "clear_mutable")
    names = [symbol.sym.name for trace in traces for symbol in trace.bound_symbols]
    return {"symbols": sum(not name.startswith(others) for name in names)}


if __name__ == "__main__":
    serve(measure)
