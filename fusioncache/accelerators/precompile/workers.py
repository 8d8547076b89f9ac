"""The process that has the workers of a ``CompilePool``: it imports once what they need, and forks them.

It opens no device. Workers compile what the store lacks and no other process is at: the store's turn decides that, also
between the workers of several ranks and the processes that they work for.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import get_context, util
from multiprocessing.connection import Connection
from pathlib import Path

from fusioncache.accelerators.precompile.entry_compiler import DIED, FAILED, NO_WORKER, EntryCompiler, TaskOutcome
from fusioncache.accelerators.precompile.requests import CompileTask
from fusioncache.backends.api import BACKENDS, backend_class
from fusioncache.process import forks
from fusioncache.store import Store

TICK = 0.25
LEAST_SECONDS, MOST_SECONDS, TIMES = 60.0, 300.0, 8.0
"""How long all workers may finish no task: so many times the longest compile of any, between these."""
REST_SECONDS, IDLE_SECONDS = 1.0, 300.0
"""How long workers wait for a task, which may hold memory of a device; and how long this process does without any."""

_PR_SET_PDEATHSIG = 1


class Workers:
    """A pool of workers that is there while there are tasks.

    A worker that dies takes the pool with it. All unfinished tasks are then done by one worker after the other, in
    order, so that it is known which task a further one dies of.

    Args:
        connection: to the process that the tasks are from.
        jobs: how many workers there may be.
        start: starts in a worker, given whether to open a GPU at once, and its number.
        clock: returns the seconds of a clock that only goes forward.
    """

    def __init__(
        self,
        connection: Connection,
        jobs: int,
        start: Callable[[bool, int | None], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._connection = connection
        self._jobs = jobs
        self._start = start
        self._clock = clock
        self._pool: ProcessPoolExecutor | None = None
        self._is_single = self._is_early = self._is_broken = self._is_unfit = False
        self._tasks: dict[int, CompileTask] = {}
        self._lock = forks.lock()
        self._longest = 0.0
        self._since = clock()

    def run(self, owner: int) -> bool:
        """Works until the process with this id is gone or has wanted nothing for long; returns whether all is well.

        Raises:
            OSError: if no worker can be started, as without shared memory.
        """
        while os.getppid() == owner:
            try:
                received = self._connection.recv() if self._connection.poll(TICK) else None
            except (EOFError, OSError):
                break
            if received:
                self._add(*received)
            if self._is_broken:
                self._repair()
            if self._is_unfit or self._has_hung():
                return False
            idle = 0.0 if self._tasks else self._clock() - self._since
            if idle >= REST_SECONDS and not self._is_early:
                self._close()
            if idle >= IDLE_SECONDS:
                break
        if not self._tasks:
            self._close()
        return True

    def _add(self, tasks: dict[int, CompileTask], device: int | None) -> None:
        """Has tasks compiled. Where there are none, the workers open their GPU and wait for some."""
        self._is_early = not tasks
        self._since = self._clock()
        with self._lock:
            self._tasks |= tasks
        if self._pool is None:
            self._open(self._jobs, device)
        self._submit(tasks)

    def _open(self, size: int, device: int | None = None) -> None:
        self._is_single = size == 1
        self._pool = ProcessPoolExecutor(size, get_context("fork"), self._start, (self._is_early, device))
        self._pool.submit(int)  # which forks all workers, from this thread

    def _close(self) -> None:
        if self._pool:
            self._pool.shutdown()
            self._pool = None

    def _submit(self, tasks: dict[int, CompileTask]) -> None:
        with suppress(BrokenProcessPool):
            for number, task in tasks.items():
                assert self._pool is not None
                self._pool.submit(compile_task, task).add_done_callback(partial(self._finish, number))
            return
        self._is_broken = True

    def _finish(self, number: int, future: Future[TaskOutcome]) -> None:
        """Tells what became of a task. A thread of the pool calls this."""
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            self._is_broken = True
        elif error is not None:
            self._tell(number, TaskOutcome("refused", f"{FAILED}: {type(error).__name__}"))
        elif future.result() == NO_WORKER:
            self._is_unfit = True
        else:
            self._tell(number, future.result())

    def _tell(self, number: int, outcome: TaskOutcome) -> None:
        with self._lock, suppress(OSError):
            self._tasks.pop(number, None)
            if outcome.result == "compiled":
                self._longest = max(self._longest, outcome.seconds)
            self._since = self._clock()
            self._connection.send((number, outcome))

    def _repair(self) -> None:
        """Makes another pool after a worker has died."""
        self._close()
        self._is_broken = False
        if self._is_single and self._tasks:
            self._tell(min(self._tasks), TaskOutcome("refused", DIED, passing=True))
        if self._tasks:
            self._open(1)
            self._submit(dict(sorted(self._tasks.items())))

    def _has_hung(self) -> bool:
        longest = self._longest
        allowed = min(max(LEAST_SECONDS, TIMES * longest), MOST_SECONDS) if longest else MOST_SECONDS
        return bool(self._tasks) and self._clock() - self._since > allowed


def main(descriptor: str, owner: str, directory: str, backend: str, jobs: str, patience: str) -> None:
    """Has workers for another process, and ends this one. When it ends the workers do, whatever they do.

    Args:
        descriptor: of the connection to the process that the tasks are from.
        owner: that process.
        directory: of the store.
        backend: that most is compiled with.
        jobs: how many workers there may be.
        patience: see ``CompilePool``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the owner, and ends it
    with suppress(Exception):
        prepare(backend)
    gc.collect()
    gc.freeze()  # objects that no collector looks at are not copied for a child
    start = partial(start_worker, os.getpid(), Path(directory), backend, float(patience))
    is_well = Workers(Connection(int(descriptor)), int(jobs), start).run(int(owner))
    os._exit(0 if is_well else 1)


def prepare(backend: str) -> None:
    """Imports what compiling needs, without opening a device.

    Raises:
        Exception: whatever is raised where that cannot be imported. Workers answer the same to each task.
    """
    if backend in BACKENDS:
        backend_class(backend).prepare()


class Worker:
    """A process that compiles one task after the other.

    Args:
        directory: of the store.
        backend: that most is compiled with.
        patience: see ``CompilePool``.
    """

    def __init__(self, directory: Path, backend: str, patience: float):
        self._backend_name = backend
        self._starts: list[float] = []
        self._compiler = EntryCompiler(Store.open(directory), patience=patience, on_start=self._note_start)
        self._is_open: bool | None = None

    def open(self, device: int | None) -> bool:
        """Opens the GPU of this number, if that has not been tried before, and returns whether this one can compile."""
        if self._is_open is None:
            try:
                if self._backend_name in BACKENDS:
                    backend_class(self._backend_name).open_device(device)
                self._is_open = True
            except Exception as error:  # whatever it is, this process is of no use
                print(f"fusioncache: a worker is of no use: {type(error).__name__}: {error}", file=sys.stderr)
                self._is_open = False
        return self._is_open

    def compile(self, task: CompileTask) -> TaskOutcome:
        """Compiles a task, and returns what became of it."""
        if not self.open(task.device):
            return NO_WORKER
        self._starts.clear()
        begun = time.perf_counter()
        outcome = self._compiler.compile(task)
        return replace(outcome, seconds=time.perf_counter() - begun, on_start=sum(self._starts))

    def _note_start(self, title: str, seconds: float) -> None:
        self._starts.append(seconds)


_worker: Worker
"""The worker that this process is, if it is one."""


def start_worker(
    parent: int, directory: Path, backend: str, patience: float, is_early: bool, device: int | None
) -> None:
    """Makes this process a worker, which ends with its parent."""
    global _worker
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        os._exit(1)
    util.Finalize(None, atexit._run_exitfuncs, exitpriority=0)  # compilers have files to remove
    _worker = Worker(directory, backend, patience)
    if is_early:
        _worker.open(device)


def compile_task(task: CompileTask) -> TaskOutcome:
    """Compiles a task in a worker, and returns what became of it."""
    return _worker.compile(task)
