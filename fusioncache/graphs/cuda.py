"""Captures with CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

from fusioncache.graphs.recorder import NotCaptured, Record, Recorder, Recording


def find_recorder(device: Any) -> Recorder:
    """Returns what captures on a device.

    Raises:
        NotCaptured: if CUDA graphs cannot be captured there.
    """
    import torch

    if device.type != "cuda":
        raise NotCaptured(
            "tensors on the CPU" if device.type == "cpu" else f"tensors on a device of type {device.type}"
        )
    if torch.version.hip is not None:
        raise NotCaptured("a GPU that is not NVIDIA's")
    if torch.cuda.get_allocator_backend() != "native":
        raise NotCaptured("an allocator other than torch's own")
    return CudaRecorder(device)


class CudaRecorder:
    """Captures on one GPU. All captures have one pool, and are made on one stream: others do not share memory.

    Torch gives up a pool with the last graph that has it, so that a model that is dropped leaves nothing. What is
    captured after that, or after a capture that failed, has a pool of its own: it shares less, and nothing wrongly.

    Args:
        device: of type cuda, with an index.

    Attributes:
        device: the same.
    """

    def __init__(self, device: Any):
        import torch

        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._graphs: WeakSet[Any] = WeakSet()
        self._home: int | None = None

    def explain_unready(self) -> str | None:
        """Tells why nothing can be captured or replayed at this moment; None if it can.

        Replays share memory, so they come one after the other: on the stream of the first one.
        """
        import torch

        if torch.cuda.is_current_stream_capturing():
            return "somebody else captures the call"
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        if self._home is None:
            self._home = stream
        return None if stream == self._home else "another stream than that of the first call"

    def read_random_state(self) -> object:
        """Returns something that is equal as long as nobody drew random numbers on this GPU."""
        import torch

        generator = torch.cuda.default_generators[self.device.index]
        return generator.initial_seed(), generator.get_offset()

    def record(self, function: Record, arguments: list[Any]) -> Recording:
        """Captures a call of a function: see ``Recorder``."""
        import torch

        if not self._graphs:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        # What lies idle outside of the pool would not be there for it.
        torch.cuda.empty_cache()
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream), _without_collector():
            results = self._capture(graph, function, arguments)
        self._graphs.add(graph)
        return Recording(graph.replay, list(results))

    def _capture(self, graph: Any, function: Record, arguments: list[Any]) -> Sequence[Any]:
        # Other threads, of a data loader say, may allocate meanwhile.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            results = function(arguments)
        except BaseException:
            self._abandon(graph)
            raise
        try:
            graph.capture_end()
        except Exception:
            self._repair()
            raise
        return results

    def _abandon(self, graph: Any) -> None:
        try:
            graph.capture_end()
        except Exception:  # it was something that no capture may have, and CUDA says so again
            self._repair()

    def _repair(self) -> None:
        """Lets torch forget a capture that CUDA gave up.

        Torch leaves the allocators and the random numbers as they are within a capture. For memory of the GPU that can
        be ended here; that of the host takes the pool for one that is recorded to, for ever. Another capture, of next
        to nothing, ends it for random numbers.
        """
        import torch

        pool, self._pool = self._pool, torch.cuda.graph_pool_handle()
        with suppress(Exception):
            torch._C._cuda_endAllocateToPool(self.device.index, pool)
        with suppress(Exception):
            torch._C._cuda_releasePool(self.device.index, pool)
        with suppress(Exception):
            empty = torch.cuda.CUDAGraph()
            empty.capture_begin(capture_error_mode="thread_local")
            torch.empty(1, device=self.device).zero_()
            empty.capture_end()

    def finish(self) -> None:
        """Waits until what was launched is done."""
        import torch

        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize(self.device)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Keeps Python's collector from freeing something of CUDA's in the middle of a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
