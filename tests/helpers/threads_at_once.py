"""Threads that all run at the same time."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def run_at_once(*works: Callable[[], object]) -> None:
    """Does each of these on a thread of its own once all threads are there. Raises what one of them raises."""
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        barrier.wait()
        work()

    with ThreadPoolExecutor(len(works)) as threads:
        list(threads.map(run, works))
