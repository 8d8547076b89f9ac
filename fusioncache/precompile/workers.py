"""Processes that compile ahead, several because a compiler may hold Python's lock. One that dies costs one entry."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from fusioncache.precompile.entry_compiler import Outcome
from fusioncache.precompile.worker import READY
from fusioncache.process import forks

DIED = Outcome("refused", "worker died")
NO_WORKER = Outcome("refused", "no worker starts")


def compile_in_workers(directory: Path, ids: Sequence[str], jobs: int) -> Iterator[Outcome]:
    """Compiles what entries ask for, and gives the outcome of each, in no order.

    Args:
        directory: of the store.
        ids: of the entries.
        jobs: how many processes.
    """
    crew = _Crew(directory, ids)
    threads = [threading.Thread(target=crew.serve, daemon=True) for _ in range(min(jobs, len(ids)))]
    for thread in threads:
        thread.start()
    try:
        working = len(threads)
        while working:
            outcome = crew.outcomes.get()
            if outcome is None:
                working -= 1
            else:
                yield outcome
        yield from (NO_WORKER for _ in crew.take_waiting())
    finally:
        crew.end()
        for thread in threads:
            thread.join()


def worker_command(directory: Path) -> list[str]:
    """Returns the command that starts a worker."""
    return [sys.executable, "-m", "fusioncache.precompile.worker", str(directory)]


class _Crew:
    """Entries that wait, and the processes that take them one by one, each watched by a thread."""

    def __init__(self, directory: Path, ids: Sequence[str]):
        self.outcomes: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        self._directory = directory
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        for id_ in ids:
            self._waiting.put(id_)
        self._processes: set[subprocess.Popen[str]] = set()
        self._ended = False
        self._lock = forks.lock()

    def serve(self) -> None:
        """Has one process after the other compile, until nothing waits or no process starts."""
        try:
            while not self._waiting.empty():
                process = self._start()
                if process is None:
                    return
                self._use(process)
        finally:
            self.outcomes.put(None)

    def take_waiting(self) -> Iterator[str]:
        """Takes what still waits, one by one."""
        with suppress(queue.Empty):
            while True:
                yield self._waiting.get_nowait()

    def end(self) -> None:
        """Ends the processes, whatever they do at the moment."""
        with self._lock:
            self._ended = True
            for process in self._processes:
                process.kill()

    def _start(self) -> subprocess.Popen[str] | None:
        """Starts a process and waits until it is ready; None if it does not get that far."""
        with self._lock:
            if self._ended:
                return None
            try:
                process = _start_process(self._directory)
            except OSError:
                return None
            self._processes.add(process)
        assert process.stdout is not None
        if process.stdout.readline() == READY:
            return process
        self._close(process)
        return None

    def _use(self, process: subprocess.Popen[str]) -> None:
        """Hands the process what waits, until there is nothing or it dies."""
        try:
            for id_ in self.take_waiting():
                outcome = _ask(process, id_)
                self.outcomes.put(outcome)
                if outcome is DIED:
                    return
        finally:
            self._close(process)

    def _close(self, process: subprocess.Popen[str]) -> None:
        with suppress(OSError), process:  # which closes its stdin, and it ends
            pass
        with self._lock:
            self._processes.discard(process)


def _start_process(directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        worker_command(directory), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def _ask(process: subprocess.Popen[str], id_: str) -> Outcome:
    assert process.stdin is not None and process.stdout is not None
    try:
        print(json.dumps(id_), file=process.stdin, flush=True)
        return Outcome(*json.loads(process.stdout.readline()))
    except (OSError, ValueError):  # no whole line: it is gone
        return DIED
