"""Takes a step of a model, and measures time and memory of later steps."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import nn

Call = Callable[..., torch.Tensor]

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""The variable without which torch's deterministic algorithms raise. Torch parses it at each matrix product."""


def synchronize(device: str) -> None:
    """Waits for the GPU, if there is one."""
    if device == "cuda":
        torch.cuda.synchronize()


def take_step(model: nn.Module, call: Call, tokens: torch.Tensor, device: str) -> tuple[float, torch.Tensor]:
    """Takes a training step without an optimizer; returns its seconds and its output."""
    model.zero_grad(set_to_none=True)
    synchronize(device)
    start = time.perf_counter()
    output = call(tokens)
    output.float().square().mean().backward()
    synchronize(device)
    return time.perf_counter() - start, output.detach()


def measure_later(step: Callable[[], object], clear: Callable[[], None], *, device: str, steps: int) -> dict[str, Any]:
    """Returns medians over some steps, after as many unmeasured ones.

    Args:
        step: takes one step.
        clear: drops the gradients of the last step, so that none accumulate; not timed.
        device: ``"cuda"`` or ``"cpu"``.
        steps: number of steps.

    Returns:
        ``step``: seconds from one synchronization to the next; ``host``: seconds until the step is launched; ``steps``;
        and ``peak``: the largest number of bytes allocated on a GPU, None on a CPU.
    """
    with _fast_algorithms():
        for _ in range(steps):
            _time_step(step, clear, device)
        gc.collect()  # garbage in cycles would count as memory of a step
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        taken = [_time_step(step, clear, device) for _ in range(steps)]
    return {
        "step": median(whole for whole, _ in taken),
        "host": median(launched for _, launched in taken),
        "steps": steps,
        "peak": torch.cuda.max_memory_allocated() if device == "cuda" else None,
    }


def _time_step(step: Callable[[], object], clear: Callable[[], None], device: str) -> tuple[float, float]:
    """Returns the seconds of a step, and the seconds until it was launched."""
    clear()
    synchronize(device)
    start = time.perf_counter()
    step()
    launched = time.perf_counter() - start
    synchronize(device)
    return time.perf_counter() - start, launched


@contextmanager
def _fast_algorithms() -> Iterator[None]:
    """Disables deterministic algorithms within its body, because no training uses them."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    use_deterministic_algorithms(False)
    try:
        yield
    finally:
        use_deterministic_algorithms(deterministic, warn_only=warn_only)


def use_deterministic_algorithms(wanted: bool, *, warn_only: bool = False) -> None:
    """Makes torch use deterministic algorithms, or the fast ones."""
    if wanted:
        os.environ.setdefault(_WORKSPACE, ":4096:8")
    else:
        os.environ.pop(_WORKSPACE, None)
    torch.use_deterministic_algorithms(wanted, warn_only=warn_only)
