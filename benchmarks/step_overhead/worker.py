"""Takes steps one way, and says what each part of a later one takes of the host's time, and what is called in it."""

from __future__ import annotations

import gc
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.common.processes import serve
from benchmarks.common.turns import turn
from benchmarks.step_overhead.counts import count_calls, count_operations, count_symbols
from benchmarks.step_overhead.spec import StepSpec

WARM_UP = 10
"""How many steps come before those that count: by then all is compiled, and Thunder's prologue was rewritten."""

_PROFILED = 3
"""In how many steps kernels are watched."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A compiled model, and an input.

    Attributes:
        spec: of the step.
        compiled: the model.
        example: the input.
        statistics: Thunder's, of its calls; None without Thunder.
    """

    spec: StepSpec
    compiled: Callable[..., Any]
    example: Any
    statistics: Any

    def forward(self) -> Any:
        """Takes a forward pass."""
        import torch

        if self.spec.model.grad:
            return self.compiled(self.example)
        with torch.no_grad():
            return self.compiled(self.example)

    def step(self) -> None:
        """Takes a step, and waits for nothing."""
        import torch

        output = self.forward()
        if self.spec.model.grad:
            output.backward(torch.ones_like(output))


def measure(argument: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns milliseconds, medians of all steps that count, bytes, what a GPU does, and counts of what a step calls.

    Of these ``python`` are functions of Python, ``torch`` functions of torch's that are written in C++, ``operations``
    what of these came to torch's dispatcher, and ``symbols`` what is in Thunder's final traces. There is one for each
    of the ``specs``, whose steps are taken in turn. Bytes are only known of one that has the process for itself.
    """
    import torch

    torch.set_num_threads(1)  # others wait for each other, and narrow layers have nothing for them to do
    subjects = [_prepare(StepSpec.read(each)) for each in argument["specs"]]
    with turn():
        parts = _measure_parts(subjects)
        alone = len(subjects) == 1
        return [_measure(subject, found, alone) for subject, found in zip(subjects, parts, strict=True)]


def _prepare(spec: StepSpec) -> Subject:
    """Returns a model that has taken its first steps."""
    import torch

    model, example = _make_model(spec)
    if spec.model.grad:
        for parameter in model.parameters():  # what a graph returns may not stay there, where others are added to it
            parameter.grad = torch.zeros_like(parameter)
    subject = Subject(spec, *_compile(spec, model, example))
    for _ in range(WARM_UP):
        subject.step()
    return subject


def _measure(subject: Subject, milliseconds: dict[str, float], alone: bool) -> dict[str, Any]:
    milliseconds["wall"], memory = _measure_many(subject)
    kernels = _watch_kernels(subject)
    counts = {
        **count_calls(subject.step),
        "operations": count_operations(subject.step),
        **count_symbols(subject.statistics),
    }
    bytes_ = memory if alone else dict.fromkeys(memory)
    return {"milliseconds": milliseconds, **bytes_, **kernels, "counts": counts}


def _make_model(spec: StepSpec) -> tuple[Any, Any]:
    from benchmarks.common.models import make_llama, make_model

    if spec.width == "narrow" and spec.tokens is None:
        return make_model(spec.model)
    return make_llama(spec.model, narrow=spec.width == "narrow", tokens=(1, spec.tokens or 64))


def _measure_parts(subjects: Sequence[Subject]) -> list[dict[str, float]]:
    """Returns milliseconds of the parts of a step of each. In each round all take a step, the first one last next."""
    samples: list[defaultdict[str, list[float]]] = [defaultdict(list) for _ in subjects]
    places = list(range(len(subjects)))
    for _ in range(subjects[0].spec.model.steps):
        for place in places:
            _take_apart(subjects[place], samples[place])
        places.reverse()
    return [_summarize(found) for found in samples]


def _take_apart(subject: Subject, samples: Mapping[str, list[float]]) -> None:
    """Notes milliseconds of the parts of one step. Before each part the device has nothing to do."""
    import torch

    from benchmarks.common.steps import synchronize

    device, statistics = subject.spec.model.device, subject.statistics
    synchronize(device)
    start = time.perf_counter_ns()
    output = subject.forward()
    samples["forward"].append((time.perf_counter_ns() - start) / 1e6)
    if subject.spec.model.grad:
        gradient = torch.ones_like(output)
        synchronize(device)
        start = time.perf_counter_ns()
        output.backward(gradient)
        samples["backward"].append((time.perf_counter_ns() - start) / 1e6)
    if statistics:
        taken = statistics.last_prologue_execution_stop - statistics.last_prologue_execution_start
        samples["prologue"].append(taken / 1e6)


def _summarize(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns medians of parts, and of whole steps what a tenth of them is quicker than, and the fastest one."""
    found = {name: round(median(taken), 4) for name, taken in samples.items()}
    parts = [samples[name] for name in ("forward", "backward") if name in samples]
    steps = sorted(map(sum, zip(*parts, strict=True)))
    found["step"] = round(sum(found[name] for name in ("forward", "backward") if name in found), 4)
    found["tenth"], found["fastest"] = round(steps[len(steps) // 10], 4), round(steps[0], 4)
    return found


def _measure_many(subject: Subject) -> tuple[float, dict[str, int | None]]:
    """Returns milliseconds of a step of many, none of which is waited for, and bytes of the GPU's memory for these.

    Gradients are added up in a tensor of each parameter's, as in the other steps. Garbage is collected before: where
    Python looks through all of a process, that takes as long as 30 steps, and comes once in thousands.
    """
    import torch

    from benchmarks.common.steps import synchronize

    device, steps = subject.spec.model.device, subject.spec.model.steps
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    synchronize(device)
    start = time.perf_counter_ns()
    for _ in range(steps):
        subject.step()
    synchronize(device)
    taken = round((time.perf_counter_ns() - start) / 1e6 / steps, 4)
    if device != "cuda":
        return taken, {"reserved_bytes": None, "peak_bytes": None}
    peak = {"reserved_bytes": torch.cuda.max_memory_reserved(), "peak_bytes": torch.cuda.max_memory_allocated()}
    return taken, peak


def _watch_kernels(subject: Subject) -> dict[str, Any]:
    """Returns what a GPU does in a step, by kind of kernel and by the longest ones' names; None without one."""
    if subject.spec.model.device != "cuda":
        return {"kernels": None, "longest_kernels": None}
    from benchmarks.common.kernels import profile_kernels
    from benchmarks.step_overhead.kernels import list_longest, sum_kernels

    kernels = profile_kernels(subject.step, _PROFILED)
    return {"kernels": sum_kernels(kernels, _PROFILED), "longest_kernels": list_longest(kernels, _PROFILED)}


def _compile(spec: StepSpec, model: Any, example: Any) -> tuple[Callable[..., Any], Any, Any]:
    """Returns the compiled model, its input, and Thunder's statistics of its calls if it has any."""
    import torch

    backend = spec.model.backend
    if spec.way == "eager":
        return model, example, None
    if spec.way == "torch.compile":
        return torch.compile(model, backend="aot_eager" if backend == "eager" else "inductor"), example, None
    if spec.way == "reduce-overhead":
        return torch.compile(model, mode="reduce-overhead"), example, None
    import thunder
    from thunder.transforms.cudagraph import CUDAGraphTransform

    from benchmarks.common.counting import use_backend
    from benchmarks.common.thunder_jit import executors, make_transform
    from fusioncache.accelerators.steps import prologue
    from fusioncache.fusion_cache import Attention

    use_backend(backend)
    if spec.way == "own prologue":
        prologue.CALLS = sys.maxsize
    lean = "thunder" if spec.way == "own calls" else "auto"
    captures = spec.way in ("graphs", "cudnn graphs")
    ours = [] if spec.way == "thunder" else [make_transform(backend, graphs=captures, lean=lean)]
    more = [CUDAGraphTransform()] if spec.way == "thunder graphs" else []
    attention: Attention = "cudnn" if spec.way.startswith("cudnn") else "thunder"
    compiled = thunder.jit(model, executors=executors(backend, attention), transforms=[*ours, *more])
    return compiled, example, thunder.compile_stats(compiled)


if __name__ == "__main__":
    serve(measure)
