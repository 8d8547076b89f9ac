"""One plan for one model, measured in a process of its own.

The first step is made with algorithms that give the same bits every time, and is the one whose output and gradients are
compared. ``saved`` is what autograd keeps in it between the passes: the storages of all tensors saved for backward,
each once, other than the model's own and its input's. Later steps are those of ``benchmarks/steady.py``.
"""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import thunder
import torch

import fusioncache
from benchmarks.common.choices import described
from benchmarks.common.executors import compile_regions_with, executors
from benchmarks.common.processes import serve
from benchmarks.common.steady import measure_steps, synchronize
from benchmarks.memory.spec import MemorySpec
from benchmarks.memory.work import Work, make_work


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes, seconds, choices and digests of one point."""
    spec = MemorySpec(**options)
    # Ends the process by itself, in the middle of a compiler too: no exception would be seen there.
    signal.alarm(spec.seconds)
    torch.use_deterministic_algorithms(True, warn_only=True)
    compile_regions_with(spec.backend)
    _warm_up(spec)
    work = make_work(spec)
    transform = fusioncache.FusionCache(backend=spec.backend, cache=fusioncache.Cache(), **spec.options())
    compiled = work.workload.compile(executors(spec.backend), [transform])
    found = _first_step(spec, work, compiled)
    found |= _counts(transform)
    found["steady"] = measure_steps(
        lambda: work.forward(compiled), work.backward, work.clear, device=spec.device, steps=spec.steps
    )
    later = transform.stats().compiles - found["compiles"]
    return found | {"compiles_later": later, "layers": work.workload.layers}


def _warm_up(spec: MemorySpec) -> None:
    """Pays the one-time costs of a process, with another operation and another shape than any model's."""
    x = torch.ones(3, 7, device=spec.device, dtype=getattr(torch, spec.dtype), requires_grad=True)
    transform = fusioncache.FusionCache(backend=spec.backend, cache=fusioncache.Cache())
    function = thunder.jit(
        lambda x: torch.sigmoid(x) @ torch.cos(x).mT, executors=executors(spec.backend), transforms=[transform]
    )
    function(x).sum().backward()
    synchronize(spec.device)


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
    tensors = results(work, output)
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
    """Counts the bytes of storages that are saved for backward. All are alive until then, so that addresses tell."""

    def __init__(self, others: Iterable[torch.Tensor]):
        """Those of some tensors are kept anyway, and do not count."""
        self.size = 0
        self.count = 0
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in others}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """A hook for ``saved_tensors_hooks``. The tensor stays as it is."""
        self.count += 1
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.size += storage.nbytes()
        return tensor


def results(work: Work, output: torch.Tensor) -> dict[str, torch.Tensor]:
    """The output and each gradient, by name."""
    gradients = {f"gradient of {name}": p.grad for name, p in work.workload.model.named_parameters()}
    return {"output": output.detach(), **{name: tensor for name, tensor in gradients.items() if tensor is not None}}


def digest(tensor: torch.Tensor) -> str:
    """Of a tensor's bytes, dtype and shape."""
    content = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    content.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return content.hexdigest()


def _counts(transform: fusioncache.FusionCache) -> dict[str, Any]:
    stats = transform.stats()
    return {
        "regions": stats.regions,
        "templates": stats.templates,
        "compiles": stats.compiles,
        "compile_seconds": stats.compile_seconds,
        "canonicalize_seconds": stats.canonicalize_seconds,
        "bypasses": dict(stats.bypasses),
        "choices": described(transform.choices()),
    }


if __name__ == "__main__":
    serve(measure)
