"""One plan for one model, measured in a process of its own.

The first step is made with algorithms that give the same bits every time, and is the one whose output and gradients are
compared. ``saved`` is what autograd keeps in it between the passes: the storages of all tensors saved for backward,
each once, other than the model's own and its input's. Later steps are those of ``benchmarks/common/steps.py``.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import fusioncache
from benchmarks.common.choices import describe_choices
from benchmarks.common.counting import use_backend
from benchmarks.common.processes import serve
from benchmarks.common.steps import measure_steps, synchronize, warm_up
from benchmarks.common.tensors import digest, name_results
from benchmarks.common.thunder_jit import executors, jit, make_transform
from benchmarks.memory.spec import MemorySpec
from benchmarks.memory.work import Work, make_work


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns bytes, seconds, choices and digests of one point."""
    spec = MemorySpec(**options)
    # Ends the process by itself, in the middle of a compiler too: no exception would be seen there.
    signal.alarm(spec.seconds)
    torch.use_deterministic_algorithms(True, warn_only=True)
    use_backend(spec.backend)
    warm_up(lambda function: jit(function, spec.backend, make_transform(spec.backend)), spec.device, spec.dtype)
    work = make_work(spec)
    transform = make_transform(spec.backend, **spec.options())
    compiled = work.workload.compile(executors(spec.backend), [transform])
    found = _first_step(spec, work, compiled)
    found |= _counts(transform)
    found["steady"] = measure_steps(
        lambda: work.forward(compiled), work.backward, work.clear, device=spec.device, steps=spec.steps
    )
    later = transform.stats().compiles - found["compiles"]
    return found | {"compiles_later": later, "layers": work.workload.layers}


def _first_step(spec: MemorySpec, work: Work, compiled: Any) -> dict[str, Any]:
    model = work.workload.model
    saved = Saved([*model.parameters(), *model.buffers(), *work.workload.inputs])
    synchronize(spec.device)
    start = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor):
        output = work.forward(compiled)
    work.backward(output)
    synchronize(spec.device)
    total = time.perf_counter() - start
    tensors = name_results(model, output)
    with ThreadPoolExecutor() as pool:  # gradients are gigabytes
        found = dict(zip(tensors, pool.map(digest, tensors.values()), strict=True))
    return {
        "first_step": total,
        "saved": saved.size,
        "saved_tensors": saved.count,
        "weights": sum(parameter.nbytes for parameter in model.parameters()),
        "tensors": found,
        "not_finite": [name for name, tensor in tensors.items() if not tensor.isfinite().all()],
    }


class Saved:
    """Counts the bytes of storages that are saved for backward. All are alive until then, so that addresses tell.

    Args:
        others: tensors that are kept anyway, whose storages do not count.
    """

    def __init__(self, others: Iterable[torch.Tensor]):
        self.size = 0
        self.count = 0
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in others}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Counts a tensor, for ``saved_tensors_hooks``. The tensor stays as it is."""
        self.count += 1
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.size += storage.nbytes()
        return tensor


def _counts(transform: fusioncache.FusionCache) -> dict[str, Any]:
    stats = transform.stats()
    return {
        "regions": stats.regions,
        "templates": stats.templates,
        "compiles": stats.compiles,
        "compile_seconds": stats.compile_seconds,
        "canonicalize_seconds": stats.canonicalize_seconds,
        "bypasses": dict(stats.bypasses),
        "choices": describe_choices(transform.choices()),
    }


if __name__ == "__main__":
    serve(measure)
