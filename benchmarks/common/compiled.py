"""A model compiled in one of several ways: its callable, counts of compilations and traces, and their seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import thunder
import torch
from torch import nn
from torch._dynamo import utils

import fusioncache
from benchmarks.common.counting import Counter, count_compiles, use_backend
from benchmarks.common.steps import Call, synchronize
from benchmarks.common.thunder_jit import executors
from benchmarks.common.ways import Way

_FRAME = "_compile.compile_inner"
_BACKWARD = ("backward._backward_impl", "compile_fx.<locals>.bw_compiler")
_INDUCTOR = ("compile_fx_inner", "AOTAutogradCache.inductor_load")
_AUTOTUNING = "CachingAutotuner.benchmark_all_configs"


class Compiled:
    """A model compiled in one way. Counts and seconds start when this object is made.

    Args:
        way: to compile it.
        backend: the compiler of Thunder's regions. With ``"eager"``, torch.compile generates no kernels.
        model: a module or a function.
        counts: whether to count the compilations of Thunder without fusioncache.
        options: of ``FusionCache``.
    """

    def __init__(self, way: Way, backend: str, model: Any, *, counts: bool = True, **options: Any):
        self.transform: fusioncache.FusionCache | None = None
        self.function: Any = None
        self._counter = Counter()
        self._graphs: list[Any] | None = None
        torch._dynamo.reset()
        utils.counters.clear()
        utils.compilation_time_metrics.clear()
        self._start = time.perf_counter()
        if way.compiler == "eager":
            self.call: Call = model
        elif way.compiler == "torch.compile":
            self.call = _compile(way, backend, model)
        else:
            self.call = self._with_thunder(way, way.backend or backend, model, counts, options)
        if way.pads:
            self.call = pad_to_powers_of_two(self.call)

    def _with_thunder(self, way: Way, backend: str, model: Any, counts: bool, options: dict[str, Any]) -> Call:
        from thunder.dynamo import thunderfx

        if way.uses_fusioncache:
            options = {"cache": fusioncache.Cache(record=False), "graphs": way.graphs or None, **way.options, **options}
            self.transform = fusioncache.FusionCache(backend=backend, **options)
        else:
            use_backend(backend)
            if counts:
                self._counter = count_compiles(backend, lru=way.lru)
        given = {"executors": _choose_executors(way, backend), "transforms": [self.transform] if self.transform else []}
        if way.compiler == "thunderfx":
            compiled = thunderfx(model, dynamic=way.dynamic or None, **given)
            self._graphs = compiled._backend.subgraph_infos
            return compiled
        self.function = thunder.jit(model, **given)
        return self.function

    @property
    def stats(self) -> fusioncache.Stats:
        """Counts of fusioncache; all zero without it."""
        return self.transform.stats() if self.transform else fusioncache.Stats()

    def counts(self) -> dict[str, int]:
        """Returns the numbers of compilations and of traces so far."""
        if self.function is None and self._graphs is None:
            graphs = int(utils.counters["stats"]["unique_graphs"])
            return {"compiles": graphs, "traces": graphs}
        return {"compiles": self._counter.compiles + self.stats.compiles, "traces": self._count_traces()}

    def _count_traces(self) -> int:
        functions = [each for graph in self._graphs or () for each in graph.thunder_compiled_fns]
        return sum(thunder.compile_stats(each).cache_misses for each in functions or filter(None, [self.function]))

    def count_parts(self) -> dict[str, int]:
        """Returns the numbers of parts that Thunder's splitter cut Dynamo's graphs into, and that Thunder compiled."""
        graphs = self._graphs or ()
        return {
            "parts": sum(len(graph.submodule_to_compiled_functions) for graph in graphs),
            "parts_with_thunder": sum(len(graph.thunder_compiled_fns) for graph in graphs),
        }

    def count_kernels(self) -> int | None:
        """Returns the number of TorchInductor's generated kernels, or of Thunder's compilations; None for neither."""
        if self.function is not None or self._graphs is not None:
            return self.counts()["compiles"]
        from torch._inductor import metrics

        return metrics.generated_kernel_count or None

    def graphs(self) -> dict[str, Any]:
        """Returns counts of captures, replays and copied gradients, and why not captured; empty without fusioncache."""
        if self.transform is None:
            return {}
        counts = {name: getattr(self.stats, name) for name in ("captures", "graph_replays", "gradients_copied")}
        return {**counts, "not_captured": dict(self.stats.not_captured)}

    def split(self, total: float) -> dict[str, float]:
        """Returns the seconds of each part of a first step, which has just been taken.

        ``trace`` is the work from Python to the compiler's input: Thunder's traces and passes, or Dynamo and
        AOTAutograd. ``compile`` is all calls of the backend's compiler, each up to the end of its first execution. For
        TorchInductor it is the time from AOTAutograd's graphs to code that runs, including autotuning of kernels. With
        fusioncache, ``key``, ``reads``, ``load`` and ``build`` are from ``Stats.program_seconds``, ``guards`` is the
        prologue, ``kernels`` is the loading of executables, and ``trace`` excludes these. ``rest`` is the remainder.
        """
        if self.function is None:
            found = _split_torch_compile() if self._graphs is None else {"compile": self.stats.compile_seconds}
        else:
            found = {"trace": thunder.compile_stats(self.function).last_prologue_execution_start / 1e9 - self._start}
            found["compile"] = self._counter.seconds + self.stats.compile_seconds
        if self.transform and self.function is not None:
            stages = {name: self.stats.program_seconds.get(name, 0.0) for name in ("key", "reads", "load", "build")}
            found = {**stages, **found, "trace": found["trace"] - sum(stages.values())}
            times = thunder.compile_stats(self.function)
            found["guards"] = (times.last_prologue_execution_stop - times.last_prologue_execution_start) / 1e9
            found["kernels"] = self.stats.load_seconds
        return {**found, "rest": total - sum(found.values()), "total": total}


def _choose_executors(way: Way, backend: str) -> list[Any]:
    if way.executors == "ours":
        return executors(backend, way.attention)
    from thunder.executors.torch_compile import torch_compile_ex

    return [*thunder.get_default_executors(), *([torch_compile_ex] if way.executors == "compiling" else [])]


def _compile(way: Way, backend: str, model: Any) -> Call:
    from torch._inductor import metrics

    metrics.reset()
    torch._dynamo.config.use_graph_deduplication = way.variant == "dedup"
    if way.variant == "nested":
        _mark_blocks(model)
    if way.graphs:
        return torch.compile(model, mode="reduce-overhead", dynamic=way.dynamic or None)
    return torch.compile(model, backend="aot_eager" if backend == "eager" else "inductor", dynamic=way.dynamic or None)


def _mark_blocks(model: nn.Module) -> None:
    """Marks each transformer block of litgpt's models, as the documentation of ``nested_compile_region`` does."""
    blocks = getattr(getattr(model, "transformer", None), "h", None) or ()
    # On the class, because torch 2.11 modifies the function and rejects a bound method.
    for block in {type(block) for block in blocks}:
        block.forward = torch.compiler.nested_compile_region(block.forward)


def _split_torch_compile() -> dict[str, float]:
    """Returns the seconds of tracing and of compiling. The backward graph is traced with the forward one."""
    inductor = sum(map(_sum_seconds, _INDUCTOR))
    backward = next(filter(None, map(_sum_seconds, _BACKWARD)), 0.0)
    trace = max(0.0, _sum_seconds(_FRAME) + backward - inductor)
    return {"trace": trace, "compile": inductor + _sum_seconds(_AUTOTUNING)}


def _sum_seconds(name: str) -> float:
    """Returns the seconds of a stage so far, as torch measured; 0 if it never ran or this version renamed it."""
    return sum(utils.compilation_time_metrics.get(name, ()))


def warm_up(way: Way, backend: str, device: str, dtype: str, *, grad: bool = True) -> None:
    """Triggers the one-time costs of a process, with operations and a shape that no model has."""
    if way.compiler == "torch.compile" and backend != "eager":
        from torch._inductor.async_compile import AsyncCompile

        getattr(AsyncCompile, "wait_pool_ready", lambda: None)()  # of TorchInductor's compile processes
    options: dict[str, Any] = {}
    if way.uses_fusioncache:
        options = {"cache": fusioncache.Cache(record=False, store=False), "jobs": 0}
    x = torch.ones(3, 7, device=device, dtype=getattr(torch, dtype), requires_grad=grad)
    plain = Way(way.name, way.compiler, way.uses_fusioncache, executors=way.executors, backend=way.backend)
    call = Compiled(plain, backend, lambda x: torch.sigmoid(x) @ torch.cos(x).mT, counts=False, **options).call
    output = call(x)
    if grad:
        output.sum().backward()
    synchronize(device)


def pad_to_powers_of_two(call: Call) -> Call:
    """Returns a call that pads tokens to the next power of two and cuts the output to the original length."""

    def padded(tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        whole = 1 << (length - 1).bit_length()
        return call(nn.functional.pad(tokens, (0, whole - length)))[:, :length]

    return padded


def subtract(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """Returns the increase of each count."""
    return {name: count - before[name] for name, count in now.items()}


def time_call(work: Callable[[], object], device: str) -> float:
    """Returns the seconds of a call, from one synchronization to the next."""
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start
