"""Thunder's peers: plain, with nvFuser's own cache, and with fusioncache."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from torch import nn

import fusioncache
from benchmarks.common.counting import Counter, count_compiles, use_backend
from benchmarks.common.thunder_jit import find_fusions, jit, make_transform, read_tracing_seconds
from benchmarks.peers.contender import Call, Contender, Counts, Spent
from benchmarks.peers.spec import Peer


class Thunder(Contender):
    """``thunder.jit``, with the same executors for each of the peers."""

    def __init__(self, peer: Peer, backend: str):
        self._peer = peer
        self._backend = backend
        self._counter = Counter()  # until there is something to count
        self._transform: fusioncache.FusionCache | None = None
        self._compiled: Any = None
        self._jit_seconds = 0.0
        self._kernels_before = 0
        use_backend(backend)

    def warm_up(self, function: Call) -> Call:
        """Compiles another function, with another cache."""
        return jit(function, self._backend, self._new_transform())

    def compile(self, model: nn.Module) -> Call:
        """Compiles the model, and counts from now on."""
        self._counter = count_compiles(self._backend, lru=self._peer.variant == "lru")
        self._kernels_before = _kernels_of_inductor()
        self._transform = self._new_transform()
        start = time.perf_counter()
        self._compiled = jit(model, self._backend, self._transform)
        self._jit_seconds = time.perf_counter() - start
        return self._compiled

    def spent(self) -> Spent:
        """Returns the seconds of tracing and of compiling.

        Tracing is ``thunder.jit`` and what lies between the start of the first call and that of the prologue. It
        holds Thunder's passes, the backward trace, and fusioncache's transform. Compiling is all calls of the backend's
        compiler, each up to the end of its first execution, and loading what an earlier process left.
        """
        stats = self._stats()
        compiling = self._counter.seconds + stats.compile_seconds + stats.load_seconds
        return Spent(self._jit_seconds + read_tracing_seconds(self._compiled), compiling)

    def counts(self) -> Counts:
        """Returns how many regions there are, and what was compiled or loaded for them."""
        units = self._counter.compiles + self._stats().compiles
        kernels = {"nvfuser": units, "inductor": _kernels_of_inductor() - self._kernels_before}.get(self._backend)
        loads = self._stats().loads if self._transform else None
        return Counts(kernels, units, regions=self._count_regions(), loads=loads)

    def _count_regions(self) -> int:
        # A loaded program has no bound symbols.
        return self._stats().regions if self._transform else len(find_fusions(self._compiled))

    def notes(self) -> Sequence[str]:
        """Says which regions fusioncache left alone."""
        return [f"left alone: {count} x {reason}" for reason, count in self._stats().bypasses.items()]

    def _stats(self) -> fusioncache.Stats:
        return self._transform.stats() if self._transform else fusioncache.Stats()

    def _new_transform(self) -> fusioncache.FusionCache | None:
        if self._peer.variant != "fusioncache":
            return None
        return make_transform(self._backend)


def _kernels_of_inductor() -> int:
    from torch._inductor import metrics

    return metrics.generated_kernel_count
