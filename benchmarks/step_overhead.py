"""Measures the host time of a later step, part by part, of a narrow Llama or one of real width.

Each way has a fresh process with empty cache folders. The device is idle before each part, so that only the host limits
it. On a GPU, forward and backward are the time until everything is launched; on a CPU they include the computation. The
prologue is the part of the forward pass that checks the arguments and the model. Figures are medians of all steps, and
with ``--processes`` medians of these: on some hosts a process is slower than the next one at the same work. There
``--together`` compares ways in one process, in which they take steps in turn.

The wall time is the time per step of many steps, one right after the other. ``synchronized`` is the time of a step from
one synchronization to the next, over as many steps again: with 10,000 of them it shows the slowest. GiB is the peak of
allocated GPU memory. The GPU time of a step is summed by the origin of its kernels.
"""

from __future__ import annotations

import gc
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from statistics import median
from typing import Any

import click
import torch

from benchmarks.common.compiled import Compiled, time_call
from benchmarks.common.kernels import Kernel, profile_kernels
from benchmarks.common.models import TOKENS, WIDTHS, ModelSpec, count_layers, make_model
from benchmarks.common.options import (
    Numbers,
    Words,
    count_option,
    limit_option,
)
from benchmarks.common.runner import Point, Run, benchmark, find_medians, pick
from benchmarks.common.steps import synchronize
from benchmarks.common.ways import WAYS, choose_ways

NAMES = (
    *("eager", "thunder", "own calls", "fusioncache", "torch.compile", "graphs", "cudnn", "cudnn graphs"),
    "reduce-overhead",
)
WARM_UP = 20
"""Number of unmeasured first steps: after these all is compiled, and Thunder's prologue was rewritten."""
_PROFILED = 3
"""Number of steps whose kernels are profiled."""

KINDS = {
    "nvFuser": r"nvfuser",
    "Triton": r"^triton_|^_?add$",
    "attention": r"fmha|flash|attention|cudnn.*sdpa",
    "products": r"gemm|nvjet|cutlass|cublas|splitK|xmma|gemv",
    "copies and fills": r"^mem(cpy|set)|FillFunctor",
}
"""The kinds of kernels, by patterns of their names; the first match counts. Kernels without a match are ``OTHERS``."""
OTHERS = "others of torch's"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec(ModelSpec):
    """A later step of a Llama. Without ``grad`` it is a forward pass under ``torch.no_grad``.

    Attributes:
        way: one of ``NAMES``.
        steps: number of measured steps.
    """

    way: str
    steps: int

    def __str__(self) -> str:
        rows, length = self.tokens
        return f"{count_layers(self.layers)}, {rows} x {length} tokens, {self.way}"


@dataclass(frozen=True, slots=True)
class Subject:
    """A compiled model, and an input.

    Attributes:
        spec: of the step.
        compiled: the model.
        example: the input.
    """

    spec: StepSpec
    compiled: Compiled
    example: torch.Tensor

    @classmethod
    def prepare(cls, spec: StepSpec) -> Subject:
        """Returns a compiled model after its first steps, and its input."""
        model, example = make_model(spec)
        if spec.grad:
            for parameter in model.parameters():  # otherwise gradients would accumulate in a graph's memory
                parameter.grad = torch.zeros_like(parameter)
        subject = cls(spec, Compiled(WAYS[spec.way], spec.backend, model), example)
        for _ in range(WARM_UP):
            subject.step()
        return subject

    def forward(self) -> torch.Tensor:
        """Runs a forward pass."""
        with torch.set_grad_enabled(self.spec.grad):
            return self.compiled.call(self.example)

    def step(self) -> None:
        """Takes a step without waiting for the device."""
        output = self.forward()
        if self.spec.grad:
            output.backward(torch.ones_like(output))

    def take_many(self, count: int) -> None:
        """Takes ``count`` steps, one right after the other."""
        for _ in range(count):
            self.step()

    def time_parts(self, samples: Mapping[str, list[float]]) -> None:
        """Adds the milliseconds of each part of one step to ``samples``. The device is idle before each part."""
        device = self.spec.device
        synchronize(device)
        start = time.perf_counter_ns()
        output = self.forward()
        samples["forward"].append((time.perf_counter_ns() - start) / 1e6)
        if self.spec.grad:
            gradient = torch.ones_like(output)
            synchronize(device)
            start = time.perf_counter_ns()
            output.backward(gradient)
            samples["backward"].append((time.perf_counter_ns() - start) / 1e6)
        if self.compiled.function is not None:
            import thunder

            statistics = thunder.compile_stats(self.compiled.function)
            taken = statistics.last_prologue_execution_stop - statistics.last_prologue_execution_start
            samples["prologue"].append(taken / 1e6)


def measure(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Returns median milliseconds of the measured steps, bytes, and a GPU's kernels, for each of the ``specs``.

    The specs take steps in turn. Bytes are only returned for a spec that has the process to itself.
    """
    torch.set_num_threads(1)  # more threads wait for each other, and narrow layers have no work for them
    subjects = [Subject.prepare(StepSpec.read(each)) for each in argument["specs"]]
    samples: list[defaultdict[str, list[float]]] = [defaultdict(list) for _ in subjects]
    places = list(range(len(subjects)))
    for _ in range(subjects[0].spec.steps):
        for place in places:
            subjects[place].time_parts(samples[place])
        places.reverse()
    alone = len(subjects) == 1
    pairs = zip(subjects, samples, strict=True)
    return {"subjects": [_measure(subject, summarize_parts(found), alone=alone) for subject, found in pairs]}


def _measure(subject: Subject, milliseconds: dict[str, float], *, alone: bool) -> dict[str, Any]:
    milliseconds["wall"], memory = _measure_many(subject)
    times = [time_call(subject.step, subject.spec.device) for _ in range(subject.spec.steps)]
    found: dict[str, Any] = {"milliseconds": milliseconds, "synchronized": summarize_times(times), "kernels": None}
    if subject.spec.device == "cuda":
        found["kernels"] = sum_kernels(profile_kernels(subject.step, _PROFILED), _PROFILED)
    return {**found, **(memory if alone else dict.fromkeys(memory))}


def summarize_parts(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns the medians of parts and their sum, and the first decile and the minimum of whole steps."""
    found = {name: round(median(taken), 4) for name, taken in samples.items()}
    parts = [samples[name] for name in ("forward", "backward") if name in samples]
    steps = sorted(map(sum, zip(*parts, strict=True)))
    found["step"] = round(sum(found[name] for name in ("forward", "backward") if name in found), 4)
    found["tenth"], found["fastest"] = round(steps[len(steps) // 10], 4), round(steps[0], 4)
    return found


def summarize_times(seconds: Sequence[float]) -> dict[str, float]:
    """Returns quantiles in milliseconds. A quantile is the least value that this share of values does not exceed."""
    ordered = sorted(seconds)
    found = {f"{share}": ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in (0.99, 0.999)}
    found = {"median": median(ordered), **found, "slowest": ordered[-1]}
    return {name: round(1e3 * value, 4) for name, value in found.items()}


def _measure_many(subject: Subject) -> tuple[float, dict[str, int | None]]:
    """Returns milliseconds per step of many without synchronization, and bytes of GPU memory for these.

    Gradients accumulate in one tensor per parameter, as in the other steps. Garbage is collected before: a full
    collection takes as long as 30 steps, and happens once in thousands.
    """
    device, steps = subject.spec.device, subject.spec.steps
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds = time_call(lambda: subject.take_many(steps), device)
    taken = round(1e3 * seconds / steps, 4)
    if device != "cuda":
        return taken, {"reserved_bytes": None, "peak_bytes": None}
    peak = {"reserved_bytes": torch.cuda.max_memory_reserved(), "peak_bytes": torch.cuda.max_memory_allocated()}
    return taken, peak


def classify_kernel(name: str) -> str:
    """Returns the kind of a kernel with this name."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE)), OTHERS)


def sum_kernels(kernels: Iterable[Kernel], steps: int) -> dict[str, dict[str, float]]:
    """Returns the milliseconds and the number of kernels per step, by kind."""
    taken: defaultdict[str, float] = defaultdict(float)
    counts = Counter[str]()
    for kernel in kernels:
        kind = classify_kernel(kernel.name)
        taken[kind] += kernel.end - kernel.start
        counts[kind] += 1
    return {
        kind: {"milliseconds": round(taken[kind] / 1e3 / steps, 4), "kernels": counts[kind] / steps}
        for kind in (*KINDS, OTHERS)
        if counts[kind]
    }


@benchmark(__doc__, needs_litgpt=True)
@click.option("--layers", type=Numbers(), default=(8, 32))
@click.option("--ways", type=Words(NAMES), default=NAMES, help="As in thunder,fusioncache.")
@click.option("--width", type=click.Choice(WIDTHS), default="narrow", help="narrow, or Llama-2-7b's own.")
@click.option("--tokens", type=Numbers(), help="In one row, as in 128,2048. By default 64 in each of two rows.")
@click.option("--mode", type=click.Choice(["training", "inference"]), default="training", help="Or forward alone.")
@count_option("--steps", 200, "Steps that count.")
@count_option("--processes", 1, "For each way; their medians count.")
@limit_option
@click.option("--together", is_flag=True, help="All ways in one process, a step of each in turn.")
def main(
    run: Run,
    layers: Sequence[int],
    ways: tuple[str, ...],
    width: str,
    tokens: Sequence[int] | None,
    mode: str,
    steps: int,
    processes: int,
    together: bool,
) -> None:
    """Runs the benchmark."""
    lengths: list[int | None] = list(tokens or ()) or [128 if width == "real" else None]
    names = [way.name for way in choose_ways(ways, run.machine.device)]
    common: dict[str, Any] = {**run.machine.place(), "model": "llama", "width": width, "grad": mode == "training"}
    groups = []
    for depth, length in product(layers, lengths):
        size = {**common, "layers": depth, "tokens": (1, length) if length else TOKENS["narrow"]}
        groups.append([StepSpec(way=way, steps=steps, **size) for way in names])
    if not together:
        groups = [[spec] for group in groups for spec in group]
    found: dict[StepSpec, list[Point]] = {}
    for group in groups * processes:  # so that processes of one way do not follow each other
        specs = [asdict(spec) for spec in group]
        result = run.measure({"ways": ", ".join(map(str, group))}, "benchmarks.step_overhead:measure", {"specs": specs})
        for spec, each in zip(group, result.get("subjects") or [result] * len(group), strict=True):
            found.setdefault(spec, []).append(each)
        run.points = [make_point(*each, mode) for each in found.items()]
        run.save()
    parts = ("prologue", "forward", "backward", "step", "tenth", "wall")
    columns = {
        **{name: pick(name) for name in ("layers", "tokens", "way")},
        **{f"{part}, ms": pick("milliseconds", part, digits=3) for part in parts},
        **{f"{name}, ms": pick("synchronized", name, digits=3) for name in ("median", "slowest")},
        "GPU, ms": _sum_gpu,
        "GiB": lambda point: None if point["peak_bytes"] is None else f"{point['peak_bytes'] / 2**30:.2f}",
    }
    run.finish("host time of a later step", columns, "medians; a prologue is part of forward")


def _sum_gpu(point: Point) -> str | None:
    return f"{sum(each['milliseconds'] for each in point['kernels'].values()):.3f}" if point["kernels"] else None


def make_point(spec: StepSpec, answers: Sequence[Point], mode: str) -> Point:
    """Returns the results of one way's processes, with medians of their times; the first error if all failed.

    Kernels are those of the first process, because all run the same kernels.
    """
    rows, length = spec.tokens
    tokens = length if rows == 1 else None
    point: Point = {"layers": spec.layers, "width": spec.width, "tokens": tokens, "mode": mode}
    point["way"] = spec.way
    results = [answer for answer in answers if "error" not in answer]
    if not results:
        return {**point, "error": answers[0]["error"], "log": answers[0].get("log", "")}
    medians = {name: find_medians([answer[name] for answer in results]) for name in ("milliseconds", "synchronized")}
    return {**point, **results[0], **medians, "processes": [answer["milliseconds"] for answer in results]}


if __name__ == "__main__":
    main()
