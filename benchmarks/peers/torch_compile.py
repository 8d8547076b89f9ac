"""torch.compile's peers: plain, with Dynamo's deduplication of graphs, and with nested regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch._dynamo import utils

from benchmarks.peers.contender import Call, Contender, Counts, Spent
from benchmarks.peers.spec import Peer

_FRAME = "_compile.compile_inner"
_BACKWARD = "backward._backward_impl"
_BACKWARD_COMPILER = "compile_fx.<locals>.bw_compiler"
_INDUCTOR = "compile_fx_inner"
_LOADING = "AOTAutogradCache.inductor_load"
_AUTOTUNING = "CachingAutotuner.benchmark_all_configs"


class TorchCompile(Contender):
    """``torch.compile`` of the whole model. With the backend that compiles nothing: Dynamo and AOTAutograd alone."""

    def __init__(self, peer: Peer, backend: str):
        self._peer = peer
        self._backend = "aot_eager" if backend == "eager" else "inductor"
        if peer.variant == "dedup":
            torch._dynamo.config.use_graph_deduplication = True

    def warm_up(self, function: Call) -> Call:
        """Compiles another function, once the compiler's processes are there."""
        if self._backend == "inductor":
            _wait_for_workers()
        return torch.compile(function, backend=self._backend)

    def compile(self, model: nn.Module) -> Call:
        """Compiles the model, and counts from now on.

        Raises:
            ValueError: if the blocks of the model were to be marked, and it has none.
        """
        if self._peer.variant == "nested":
            _mark_blocks(model)
        utils.compilation_time_metrics.clear()
        utils.counters.clear()
        _metrics().reset()
        return torch.compile(model, backend=self._backend)

    def spent(self) -> Spent:
        """Returns the seconds of tracing and of compiling.

        Compiling is TorchInductor's part: from a graph of AOTAutograd to code that runs, or finding it on disk.
        Kernels that are tuned at their first launch count as compiling, too. Tracing is what else happened in Dynamo
        and AOTAutograd. The backward graph is traced with the forward one, and compiled when it is first needed.
        """
        inductor = _seconds(_INDUCTOR) + _seconds(_LOADING)
        backward = _seconds(_BACKWARD) or _seconds(_BACKWARD_COMPILER)
        return Spent(max(0.0, _seconds(_FRAME) + backward - inductor), inductor + _seconds(_AUTOTUNING))

    def counts(self) -> Counts:
        """Returns what Dynamo and TorchInductor say they did."""
        return Counts(
            kernels=_metrics().generated_kernel_count,
            units=len(utils.compilation_time_metrics.get(_INDUCTOR, ())),
            graph_breaks=sum(utils.counters["graph_break"].values()),
        )

    def notes(self) -> Sequence[str]:
        """Says where graphs broke, and what was not counted."""
        reasons = [f"graph break: {reason.splitlines()[0]}" for reason in utils.counters["graph_break"]]
        if not utils.compilation_time_metrics.get(_FRAME):
            reasons.append(f"torch {torch.__version__} keeps no {_FRAME}: trace and compile seconds are unknown")
        bypasses = {**utils.counters["inductor"], **utils.counters["aot_autograd"]}
        reasons += [f"{name}: {count}" for name, count in bypasses.items() if name.endswith("cache_bypass")]
        return reasons


def _seconds(name: str) -> float:
    """Returns what torch says a stage took so far; nothing if it never ran, or has another name in this version."""
    return sum(utils.compilation_time_metrics.get(name, ()))


def _mark_blocks(model: nn.Module) -> None:
    """Marks each transformer block of litgpt's models, as the documentation of ``nested_compile_region`` does."""
    blocks = getattr(getattr(model, "transformer", None), "h", None)
    if not blocks:
        raise ValueError("the model has no blocks to mark with nested_compile_region")
    # On the class: torch 2.11 writes to the function, and refuses a bound method.
    for block in {type(block) for block in blocks}:
        block.forward = torch.compiler.nested_compile_region(block.forward)


def _wait_for_workers() -> None:
    """Waits for the processes in which torch compiles, as far as this version of it lets us wait."""
    from torch._inductor.async_compile import AsyncCompile

    wait = getattr(AsyncCompile, "wait_pool_ready", None)
    if wait:
        wait()


def _metrics() -> Any:
    from torch._inductor import metrics

    return metrics
