"""Captures programs with CUDA graphs, on a stream with its own cuBLAS workspace.

Torch keeps a workspace for each stream on which cuBLAS was called, and frees all of them on request, as
``torch.compile(mode="reduce-overhead")`` does. A captured graph continues to use its workspace. So programs are
captured on a private stream, whose workspace comes from a private pool. A graph that is never replayed keeps that
pool alive: memory that torch freed stays there, and torch allocates it again before the next capture.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakSet

import torch

from fusioncache.ir.errors import Declined, Scope


@dataclass(frozen=True, slots=True)
class GraphRecording:
    """A captured call of a function.

    Attributes:
        replay: runs the call with the contents that the captured memory has then.
        results: of the function, not computed yet. Tensors that the capture allocated own their memory in the pool:
            later captures may use it once they are freed. Clear the list to free them.
    """

    replay: Callable[[], None]
    results: list[Any]


FORWARD = 0
"""The number of the pool of forward programs. Others are for backward programs."""

Record = Callable[[list[Any]], Sequence[Any]]
"""A function to capture: takes its arguments from a list, which it empties, and returns a flat sequence of results."""

_NON_BLOCKING = 1
"""A flag of a CUDA stream: work on the default stream neither waits for the stream, nor ends a capture on it."""


class Workspace:
    """A stream to capture on, with its cuBLAS workspace.

    Args:
        device: of type cuda, with an index.

    Attributes:
        stream: the same as long as the process lives, as torch stores workspaces by their streams.

    Raises:
        Declined: if CUDA cannot create a stream.
    """

    def __init__(self, device: Any):
        self.stream = make_stream(device)
        self._device = device
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._keeper: Any = None

    def prepare(self) -> None:
        """Makes torch allocate the workspace from the pool, unless it exists. The stream must be the current one."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            matrix = torch.empty(16, 16, dtype=torch.bfloat16, device=self._device)
            torch.mm(matrix, matrix)
            torch.addmm(matrix[0], matrix, matrix)  # cuBLASLt may have another workspace
        finally:
            graph.capture_end()
        self._keeper = self._keeper or graph


def borrow_workspace(device: Any, borrower: object) -> Workspace:
    """Returns a workspace that has no other borrower as long as this one lives.

    Raises:
        Declined: if CUDA cannot create a stream.
    """
    idle = find_idle(device.index)
    workspace = idle.pop() if idle else Workspace(device)
    weakref.finalize(borrower, idle.append, workspace).atexit = False
    return workspace


@cache
def find_idle(_index: int) -> list[Workspace]:
    """Returns the workspaces of a device that have no borrower now. None is freed: torch can only free all at once."""
    return []


def make_stream(device: Any) -> Any:
    """Returns a stream with no other user. Torch hands out one stream, and so one workspace, to several users."""
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        torch.cuda.current_blas_handle()  # creates the device's context
        code = ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(handle), _NON_BLOCKING)
    if code:
        raise Declined("CUDA has no stream to capture on", Scope.CAPTURE)
    return torch.cuda.ExternalStream(handle.value, device=device)


def find_recorder(device: Any) -> CudaRecorder:
    """Returns a recorder for a device.

    Raises:
        Declined: if CUDA graphs cannot be captured there.
    """
    if device.type != "cuda":
        where = "the CPU" if device.type == "cpu" else f"a device of type {device.type}"
        raise Declined(f"tensors on {where}", Scope.CAPTURE)
    if torch.version.hip is not None:
        raise Declined("a GPU that is not NVIDIA's", Scope.CAPTURE)
    if torch.cuda.get_allocator_backend() != "native":
        raise Declined("another allocator than torch's native one", Scope.CAPTURE)
    return CudaRecorder(device)


class _Pool:
    """Memory that captures share.

    Torch frees a pool with the last graph that uses it, so that a dropped model leaves no memory behind. Later
    captures, and captures after one that failed, use a new pool: they share less memory, and none wrongly.

    Attributes:
        graphs: the live graphs that were captured with it.
    """

    def __init__(self) -> None:
        self.graphs: WeakSet[Any] = WeakSet()
        self._handle: Any = torch.cuda.graph_pool_handle()

    def begin(self) -> Any:
        """Returns torch's handle of the pool for a capture that begins."""
        if not self.graphs:
            self.replace()
        return self._handle

    def replace(self) -> Any:
        """Replaces the pool by a new one; returns torch's handle of the old one."""
        handle, self._handle = self._handle, torch.cuda.graph_pool_handle()
        return handle


class CudaRecorder:
    """Captures on one GPU. All captures are made on one stream: captures on several would not share memory.

    Args:
        device: of type cuda, with an index.

    Attributes:
        device: the same.
    """

    def __init__(self, device: Any):
        self.device = device
        self._pools: defaultdict[int, _Pool] = defaultdict(_Pool)
        self._workspace = borrow_workspace(device, self)
        self._home: int | None = None

    def explain_unready(self) -> str | None:
        """Returns why nothing can be captured or replayed now; None if it can. Called in each call of a program.

        Replays share memory, so they must run one after the other: on the stream of the first one.
        """
        if torch.cuda.is_current_stream_capturing():
            return "the call is captured by another CUDA graph"
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        if self._home is None:
            self._home = stream
        return None if stream == self._home else "another stream than that of the first call"

    def read_random_state(self) -> object:
        """Returns a value that stays equal until random numbers are drawn on this GPU."""
        generator = torch.cuda.default_generators[self.device.index]
        return generator.initial_seed(), generator.get_offset()

    def record(self, function: Record, arguments: list[Any], pool: int = FORWARD) -> GraphRecording:
        """Captures a call of a function, without running its kernels.

        Args:
            function: the function to capture.
            arguments: at the addresses from which each replay reads them.
            pool: the number of the pool to allocate from.

        Raises:
            Exception: any error of the capture. Torch's state is restored.
        """
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        # The pool cannot use memory that torch's allocator caches outside of it.
        torch.cuda.empty_cache()
        with torch.cuda.device(self.device), torch.cuda.stream(self._workspace.stream), _without_collector():
            self._workspace.prepare()
            results = self._capture(graph, function, arguments, self._pools[pool])
        return GraphRecording(graph.replay, list(results))

    def _capture(self, graph: Any, function: Record, arguments: list[Any], pool: _Pool) -> Sequence[Any]:
        # Other threads, such as a data loader's, may allocate during the capture.
        graph.capture_begin(pool=pool.begin(), capture_error_mode="thread_local")
        try:
            results = function(arguments)
        except BaseException:
            self._abandon(graph, pool)
            raise
        try:
            graph.capture_end()
        except Exception:
            self._repair(pool)
            raise
        pool.graphs.add(graph)
        return results

    def _abandon(self, graph: Any, pool: _Pool) -> None:
        try:
            graph.capture_end()
        except Exception:  # the function did something that no capture allows, and CUDA reports it again
            self._repair(pool)

    def _repair(self, pool: _Pool) -> None:
        """Clears torch's state of a capture that CUDA invalidated.

        Torch leaves its allocators and random generators in capture mode. For the GPU's allocator that can be ended
        here; the host's allocator treats the pool as one being captured, forever. Another, nearly empty capture ends
        it for the random generators.
        """
        broken = pool.replace()
        with suppress(Exception):
            torch._C._cuda_endAllocateToPool(self.device.index, broken)
        with suppress(Exception):
            torch._C._cuda_releasePool(self.device.index, broken)
        with suppress(Exception):
            empty = torch.cuda.CUDAGraph()
            empty.capture_begin(capture_error_mode="thread_local")
            torch.empty(1, device=self.device).zero_()
            empty.capture_end()

    def finish(self) -> None:
        """Waits until all launched kernels are done, so that their memory can be reused.

        During a foreign capture no kernels were launched, so it does not wait.
        """
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize(self.device)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disables Python's garbage collector, which could free a CUDA object in the middle of a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
