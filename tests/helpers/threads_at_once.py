"""Threads that all run at the same time."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def run_at_once(*works: Callable[[], object]) -> None:
    """Calls each function on its own thread once all threads have started. Raises the error of one that fails."""
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        barrier.wait()
        work()

    with ThreadPoolExecutor(len(works)) as threads:
        list(threads.map(run, works))
