"""One model in a process of its own, at each batch and length by Thunder alone, then with one ``FusionCache``.

Thunder is done before the ``FusionCache`` is made, so that nothing of fusioncache is in its way; it takes each step
twice, and so shows what can be compared bit for bit. Compared are the output and all gradients.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import thunder
import torch

from benchmarks import zoo
from benchmarks.common.counting import use_backend
from benchmarks.common.processes import serve
from benchmarks.common.tensors import compare, cotangent, name_results
from benchmarks.common.thunder_jit import executors, make_transform
from benchmarks.length_equality.spec import Spec, name_kind

Tensors = dict[str, torch.Tensor]
Call = Callable[..., torch.Tensor]


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what was found at each batch and length, in order."""
    spec = Spec.read(options)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Dynamo leaves a model to torch after eight graphs, which would compare torch with torch.
    torch._dynamo.config.recompile_limit = 8 * len(list(spec.settings()))
    use_backend(spec.backend)
    most = max(spec.lengths)
    workload = zoo.make(spec.model, spec.layers, spec.device, spec.dtype, sequence=most, batch=max(spec.batches))
    settings = [setting for setting in spec.settings() if setting[0] <= len(workload.inputs[0])]
    reference = workload.compile(executors(spec.backend))
    expected = {setting: [take_step(workload, reference, *setting, most) for _ in range(2)] for setting in settings}
    transform = make_transform(spec.backend)
    compiled = workload.compile(executors(spec.backend), [transform])
    steps = []
    for batch, length in settings:
        before, start = count(transform, compiled), time.perf_counter()
        found = take_step(workload, compiled, batch, length, most)
        seconds = round(time.perf_counter() - start, 3)
        counts = {name: value - before[name] for name, value in count(transform, compiled).items()}
        own, again = expected.pop((batch, length))
        step = {"batch": batch, "length": length, "kind": name_kind(batch, length), "seconds": seconds}
        steps.append(step | counts | compare(found, own, again))
    stats = transform.stats()
    names = ("own_sizes", "passes_repeated", "programs_interpreted")
    reasons = {name: {shorten(reason): times for reason, times in getattr(stats, name).items()} for name in names}
    return {"layers": workload.layers, "way": workload.way, "steps": steps, **reasons}


def shorten(reason: str) -> str:
    """Returns a reason whose files are named from where Python imports them, without a machine's folders."""
    for folder in sorted(filter(None, sys.path), key=len, reverse=True):
        reason = reason.replace(f"{folder}{os.sep}", "")
    return reason


def take_step(workload: zoo.Workload, call: Call, batch: int, length: int, most: int) -> Tensors:
    """Returns the output and the gradients of the parameters, for inputs that are cut to a batch and a length."""
    workload.model.zero_grad(set_to_none=True)
    output = call(*(cut(each, batch, length, most) for each in workload.inputs))
    output.backward(cotangent(output))
    return {name: tensor.clone() for name, tensor in name_results(workload.model, output).items()}


def cut(tensor: torch.Tensor, batch: int, length: int, most: int) -> torch.Tensor:
    """Returns the first rows of an input, of which each dimension as long as the longest row is cut to a length."""
    rows = tensor[:batch]
    for dimension in range(1, rows.dim()):
        if rows.shape[dimension] == most:
            rows = rows.narrow(dimension, 0, length)
    return rows.contiguous()


def count(transform: Any, compiled: Any) -> dict[str, int]:
    """Returns what was compiled so far, what needed no compile at other sizes, what was traced, and what by replay."""
    stats = transform.stats()
    names = ("compiles", "generalizations", "general_hits", "programs_replayed", "programs_filled")
    counts = {name: getattr(stats, name) for name in names}
    traced = isinstance(compiled, thunder.ThunderModule)
    return counts | ({"traces": thunder.compile_stats(compiled).cache_misses} if traced else {})


if __name__ == "__main__":
    serve(measure)
