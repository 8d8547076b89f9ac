"""A model compiled in one of several ways, its steps one by one, and what is compiled and traced in them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import thunder
import torch
from torch import nn

import fusioncache
from benchmarks.common.counting import Counter, count_compiles
from benchmarks.common.steps import synchronize
from benchmarks.common.thunder_jit import executors
from benchmarks.common.ways import Way

Call = Callable[..., torch.Tensor]


class Compiled:
    """A model as one way has it.

    Args:
        way: it.
        backend: what compiles Thunder's regions, or of torch.compile whether kernels are generated.
        model: a module or a function.
    """

    def __init__(self, way: Way, backend: str, model: Any):
        self._transform: fusioncache.FusionCache | None = None
        self._counter = Counter()
        self._functions: list[Any] = []
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        if way.compiler == "eager":
            self.call: Call = model
        elif way.compiler == "torch.compile":
            self.call = _compile(way, backend, model)
        else:
            self.call = self._with_thunder(way, backend, model)
        if way.pads:
            self.call = pad_to_powers_of_two(self.call)

    def _with_thunder(self, way: Way, backend: str, model: Any) -> Call:
        from thunder.dynamo import thunderfx

        if way.shares:
            cache = fusioncache.Cache(record=False)
            self._transform = fusioncache.FusionCache(cache=cache, backend=backend, graphs=way.graphs or None)
        else:
            self._counter = count_compiles(backend, lru=False)
        transforms = [self._transform] if self._transform else []
        options = {"executors": executors(backend, way.attention), "transforms": transforms}
        if way.compiler == "thunderfx":
            compiled = thunderfx(model, dynamic=way.dynamic or None, **options)
            self._functions = compiled._backend.subgraph_infos
            return compiled
        compiled = thunder.jit(model, **options)
        self._functions = [compiled]
        return compiled

    def counts(self) -> dict[str, int]:
        """Returns how often anything was compiled and how often anything was traced, so far."""
        if self._transform is None and not self._functions:
            graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            return {"compiles": graphs, "traces": graphs}
        stats = self._transform.stats() if self._transform else None
        return {"compiles": stats.compiles if stats else self._counter.compiles, "traces": self._count_traces()}

    def graphs(self) -> dict[str, Any]:
        """Returns what fusioncache captured, replayed, and did not capture; nothing where it is not asked for."""
        if self._transform is None:
            return {}
        stats = self._transform.stats()
        counts = {name: getattr(stats, name) for name in ("captures", "graph_replays", "gradients_copied")}
        return {**counts, "not_captured": dict(stats.not_captured)}

    def _count_traces(self) -> int:
        functions = [
            function
            for each in self._functions
            for function in (getattr(each, "thunder_compiled_fns", None) or ([] if _is_graph(each) else [each]))
        ]
        return sum(thunder.compile_stats(function).cache_misses for function in functions)


def _compile(way: Way, backend: str, model: Any) -> Call:
    if way.graphs:
        return torch.compile(model, mode="reduce-overhead", dynamic=way.dynamic or None)
    return torch.compile(model, backend="aot_eager" if backend == "eager" else "inductor", dynamic=way.dynamic or None)


def _is_graph(found: Any) -> bool:
    return hasattr(found, "thunder_compiled_fns")


def pad_to_powers_of_two(call: Call) -> Call:
    """Lets a call have tokens of the next power of two, and gives back as much as was asked for."""

    def padded(tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        whole = 1 << (length - 1).bit_length()
        return call(nn.functional.pad(tokens, (0, whole - length)))[:, :length]

    return padded


def take_step(model: nn.Module, call: Call, tokens: torch.Tensor, device: str) -> tuple[float, torch.Tensor]:
    """Takes a training step without an optimizer; returns its seconds and its output."""
    model.zero_grad(set_to_none=True)
    synchronize(device)
    start = time.perf_counter()
    output = call(tokens)
    output.float().square().mean().backward()
    synchronize(device)
    return time.perf_counter() - start, output.detach()


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns the relative error of what was found, in the L2 norm."""
    found, expected = found.double(), expected.double()
    return float((found - expected).norm() / expected.norm().clamp_min(1e-12))
