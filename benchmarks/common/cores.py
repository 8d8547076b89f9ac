"""Divides the CPU cores among processes that run at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable
from queue import SimpleQueue


def share_cores(parallel: int) -> Callable[[], None]:
    """Returns a function that pins the calling thread, and processes that it starts, to its share of the cores.

    Each of ``parallel`` threads calls it once. A single thread may use all cores.
    """
    if parallel == 1 or not hasattr(os, "sched_setaffinity"):
        return lambda: None
    cores = sorted(os.sched_getaffinity(0))
    size = max(1, len(cores) // parallel)
    shares: SimpleQueue[list[int]] = SimpleQueue()
    for number in range(parallel):
        first = size * number % len(cores)
        shares.put(cores[first : first + size])

    def take_share() -> None:
        os.sched_setaffinity(0, shares.get())

    return take_share
