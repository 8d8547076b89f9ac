"""How long a step takes once everything is compiled, and how much memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.common.steps import synchronize
from benchmarks.peers.work import Work


@dataclass(frozen=True, slots=True)
class Steady:
    """Steps after the first, one number for each.

    Attributes:
        step_ms: milliseconds of a step, from one synchronization to the next.
        host_us: microseconds until the step is launched, not waiting for the GPU; None where the CPU does the work.
            Where a step has more launches than the GPU's queue holds, the host waits for the GPU in it.
        peak_bytes: the most memory that was allocated on the GPU, weights and gradients included; None without one.
    """

    step_ms: list[float]
    host_us: list[float] | None
    peak_bytes: int | None


def measure_steady(work: Work, call: Callable[[torch.Tensor], torch.Tensor], steps: int, warmup: int) -> Steady:
    """Times steps one by one. Gradients are dropped between them, untimed."""
    cuda = work.example.is_cuda
    for _ in range(warmup):
        work.clear()
        work.step(call)
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    times = [_time_step(work, call) for _ in range(steps)]
    return Steady(
        step_ms=[total * 1e3 for total, _ in times],
        host_us=[host * 1e6 for _, host in times] if cuda else None,
        peak_bytes=torch.cuda.max_memory_allocated() if cuda else None,
    )


def _time_step(work: Work, call: Callable[[torch.Tensor], torch.Tensor]) -> tuple[float, float]:
    """Returns the seconds of one step, and of its launches."""
    work.clear()
    synchronize(work.example.device.type)
    start = time.perf_counter()
    work.step(call)
    launched = time.perf_counter()
    synchronize(work.example.device.type)
    return time.perf_counter() - start, launched - start
