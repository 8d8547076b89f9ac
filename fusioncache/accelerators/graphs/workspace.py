"""The memory in which cuBLAS works where programs are captured: nobody else is ever given it.

Torch keeps a workspace for each stream on which cuBLAS was called, and lets go of all of them when somebody asks for
that, as ``torch.compile(mode="reduce-overhead")`` does. What was captured goes on to work in it. So programs are
captured on a stream that nobody else has, and its workspace comes from a pool from which nothing else does. A graph
that is never replayed keeps that pool: memory that torch let go of stays there, and torch takes it again before the
next capture.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from typing import Any

from fusioncache.ir.errors import Declined, Scope

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
        import torch

        self.stream = make_stream(device)
        self._device = device
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._keeper: Any = None

    def prepare(self) -> None:
        """Has torch take the workspace out of the pool, if it does not have it. The stream is the current one."""
        import torch

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
    """Returns a workspace that nobody else has as long as the borrower lives.

    Raises:
        Declined: if CUDA makes no stream.
    """
    idle = find_idle(device.index)
    workspace = idle.pop() if idle else Workspace(device)
    weakref.finalize(borrower, idle.append, workspace).atexit = False
    return workspace


@cache
def find_idle(_index: int) -> list[Workspace]:
    """Returns the workspaces of a device that nobody has now. They stay: torch does not let go of a single one."""
    return []


def make_stream(device: Any) -> Any:
    """Returns a stream that nobody else has. Those of torch are one for several, and with them their workspaces."""
    import torch

    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        torch.cuda.current_blas_handle()  # makes the device's context
        code = ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(handle), _NON_BLOCKING)
    if code:
        raise Declined("CUDA has no stream to capture on", Scope.CAPTURE)
    return torch.cuda.ExternalStream(handle.value, device=device)
