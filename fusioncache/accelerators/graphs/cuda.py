"""Captures programs with CUDA graphs, on a stream with a cuBLAS workspace of its own.

Torch keeps a workspace for each stream on which cuBLAS was called, and frees all of them on request, as
``torch.compile(mode="reduce-overhead")`` does. A captured graph goes on to work in its workspace. So programs are
captured on a private stream, and its workspace comes from a private pool. A graph that is never replayed keeps that
pool alive: memory that torch freed stays there, and torch takes it again before the next capture.
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
    """What was captured.

    Attributes:
        replay: does it again, with what lies in the captured memory then.
        results: what the function returned, of which nothing was computed yet. Tensors that the capture allocated own
            their memory in the pool: it goes to later captures when they are gone. To forget them, clear the list.
    """

    replay: Callable[[], None]
    results: list[Any]


FORWARD = 0
"""The pool of forward programs. Others are for backward programs."""

Record = Callable[[list[Any]], Sequence[Any]]
"""What is captured: takes its arguments out of a list, which it empties, and returns a flat sequence of results."""

_NON_BLOCKING = 1
"""A flag of CUDA's streams: work on the default stream neither waits for one, nor ends a capture on it."""


class Workspace:
    """A stream to capture on, and the memory in which cuBLAS works there.

    Args:
        device: of type cuda, with an index.

    Attributes:
        stream: the same as long as the process lives, as torch knows workspaces by their streams.

    Raises:
        Declined: if CUDA makes no stream.
    """

    def __init__(self, device: Any):
        self.stream = make_stream(device)
        self._device = device
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._keeper: Any = None

    def prepare(self) -> None:
        """Has torch take the workspace out of the pool, if it does not have it. The stream is the current one."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            matrix = torch.empty(16, 16, dtype=torch.bfloat16, device=self._device)
            torch.mm(matrix, matrix)
            torch.addmm(matrix[0], matrix, matrix)  # cuBLASLt's may be another
        finally:
            graph.capture_end()
        self._keeper = self._keeper or graph


def borrow_workspace(device: Any, borrower: object) -> Workspace:
    """Returns a workspace that has no other borrower as long as this one lives.

    Raises:
        Declined: if CUDA makes no stream.
    """
    idle = find_idle(device.index)
    workspace = idle.pop() if idle else Workspace(device)
    weakref.finalize(borrower, idle.append, workspace).atexit = False
    return workspace


@cache
def find_idle(_index: int) -> list[Workspace]:
    """Returns the workspaces of a device that have no borrower now. They stay: torch cannot free a single one."""
    return []


def make_stream(device: Any) -> Any:
    """Returns a stream with no other user. Torch gives one stream, and so one workspace, to several."""
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        torch.cuda.current_blas_handle()  # makes the device's context
        code = ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(handle), _NON_BLOCKING)
    if code:
        raise Declined("CUDA has no stream to capture on", Scope.CAPTURE)
    return torch.cuda.ExternalStream(handle.value, device=device)


def find_recorder(device: Any) -> CudaRecorder:
    """Returns what captures on a device.

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

    Torch gives up a pool with the last graph that has it, so that a model that is dropped leaves nothing. What is
    captured after that, or after a capture that failed, has a pool of its own: it shares less, and nothing wrongly.

    Attributes:
        graphs: that were captured with it and live.
    """

    def __init__(self) -> None:
        self.graphs: WeakSet[Any] = WeakSet()
        self._handle: Any = torch.cuda.graph_pool_handle()

    def begin(self) -> Any:
        """Returns torch's handle of it for a capture that begins."""
        if not self.graphs:
            self.give_up()
        return self._handle

    def give_up(self) -> Any:
        """Goes on with another one; returns torch's handle of this one."""
        handle, self._handle = self._handle, torch.cuda.graph_pool_handle()
        return handle


class CudaRecorder:
    """Captures on one GPU. All captures are made on one stream: others would not share memory.

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
        """Returns why nothing can be captured or replayed at this moment; None if it can. Asked in each call.

        Replays share memory, so they come one after the other: on the stream of the first one.
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
        """Captures a call of a function, without doing what it does.

        Args:
            function: what is captured.
            arguments: at the addresses at which each replay finds them.
            pool: the number of that which has the memory for it.

        Raises:
            Exception: whatever goes wrong. Everything is as it was before.
        """
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        # What lies idle outside of the pool would not be there for it.
        torch.cuda.empty_cache()
        with torch.cuda.device(self.device), torch.cuda.stream(self._workspace.stream), _without_collector():
            self._workspace.prepare()
            results = self._capture(graph, function, arguments, self._pools[pool])
        return GraphRecording(graph.replay, list(results))

    def _capture(self, graph: Any, function: Record, arguments: list[Any], pool: _Pool) -> Sequence[Any]:
        # Other threads, of a data loader say, may allocate meanwhile.
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
        except Exception:  # it was something that no capture may have, and CUDA says so again
            self._repair(pool)

    def _repair(self, pool: _Pool) -> None:
        """Lets torch forget a capture that CUDA gave up.

        Torch leaves the allocators and the random numbers as they are within a capture. For memory of the GPU that can
        be ended here; that of the host takes the pool for one that is recorded to, for ever. Another capture, of next
        to nothing, ends it for random numbers.
        """
        broken = pool.give_up()
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
        """Waits until what was launched is done, so that memory can be used for something else.

        Within a foreign capture nothing was launched, and it waits for nothing.
        """
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
