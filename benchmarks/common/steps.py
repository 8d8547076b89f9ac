"""Steps of a model: one that warms a process up, and how long those after the first take, and how much memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch


def synchronize(device: str) -> None:
    """Waits for the GPU, if there is one."""
    if device == "cuda":
        torch.cuda.synchronize()


def warm_up(compile: Callable[[Any], Any], device: str, dtype: str, grad: bool = True) -> None:
    """Pays the one-time costs of a process, with another operation and another shape than any model's."""
    x = torch.ones(3, 7, device=device, dtype=getattr(torch, dtype), requires_grad=grad)
    output = compile(lambda x: torch.sigmoid(x) @ torch.cos(x).mT)(x)
    if grad:
        output.sum().backward()
    synchronize(device)


def measure_steps(
    forward: Callable[[], torch.Tensor],
    backward: Callable[[torch.Tensor], None] | None,
    clear: Callable[[], None],
    *,
    device: str,
    steps: int,
) -> dict[str, Any]:
    """Returns medians over some steps, after as many that are not measured.

    Args:
        forward: one forward pass.
        backward: the backward pass from what it returned; None if there is none.
        clear: drops the gradients of the last step, so that none is added to; not timed.
        device: ``"cuda"`` or ``"cpu"``.
        steps: how many.

    Returns:
        ``forward``, ``backward`` and ``step`` in seconds, from one synchronization to the next; of a GPU's memory in
        bytes ``before``, allocated when a step starts, and ``peak``, at most allocated in one; else these are None.
    """
    with _fast_algorithms():
        for _ in range(steps):
            _step(forward, backward, clear, device)
        before = _start_watching(clear, device)
        taken = [_step(forward, backward, clear, device) for _ in range(steps)]
    return {
        "forward": median(forth for forth, _ in taken),
        "backward": median(back for _, back in taken) if backward else None,
        "step": median(forth + back for forth, back in taken),
        "steps": steps,
        "before": before,
        "peak": torch.cuda.max_memory_allocated() if device == "cuda" else None,
    }


def _step(
    forward: Callable[[], torch.Tensor],
    backward: Callable[[torch.Tensor], None] | None,
    clear: Callable[[], None],
    device: str,
) -> tuple[float, float]:
    """Returns the seconds of a forward pass, and of a backward pass."""
    clear()
    synchronize(device)
    start = time.perf_counter()
    output = forward()
    synchronize(device)
    middle = time.perf_counter()
    if backward:
        backward(output)
        synchronize(device)
    return middle - start, time.perf_counter() - middle


def _start_watching(clear: Callable[[], None], device: str) -> int | None:
    if device != "cuda":
        return None
    clear()
    gc.collect()  # what lies in cycles would count as memory of a step
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


@contextmanager
def _fast_algorithms() -> Iterator[None]:
    """Leaves the algorithms that give the same bits every time, with which nobody trains."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
