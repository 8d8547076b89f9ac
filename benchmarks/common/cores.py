"""Cores for processes that run at once, so that none of them takes another's."""

from __future__ import annotations

import os
from collections.abc import Callable
from queue import SimpleQueue


def share_cores(parallel: int) -> Callable[[], None]:
    """Returns what each of so many threads calls once: it keeps the thread, and processes that it starts, to a share.

    One thread alone has all cores.
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
