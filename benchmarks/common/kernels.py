"""Kernels that a device runs, as torch's profiler records them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.profiler import ProfilerActivity, profile

_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
"""Categories of profiler events that are work of a device. Annotations are excluded, because they span other events."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel, memory copy or memset.

    Attributes:
        name: of the kernel.
        start: in microseconds.
        end: the same.
    """

    name: str
    start: float
    end: float

    @property
    def communicates(self) -> bool:
        """Whether it is a kernel of NCCL."""
        return self.name.startswith("nccl")


def profile_kernels(step: Callable[[], object], steps: int) -> list[Kernel]:
    """Returns the kernels of some steps, after one step that warms up the profiler."""
    _run(step, 1)
    profiler = _run(step, steps)
    with TemporaryDirectory(prefix="fusioncache-profile-") as directory:
        file = Path(directory, "trace.json")
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    return [
        Kernel(event["name"], float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        for event in events
        if event.get("cat") in _CATEGORIES
    ]


def _run(step: Callable[[], object], steps: int) -> profile:
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
            torch.cuda.synchronize()
    return profiler
