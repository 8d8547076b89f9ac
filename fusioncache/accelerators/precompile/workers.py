"""The pool process of a ``CompilePool``, and its workers.

One thread forks all workers and communicates with them, because a worker ends with the thread that forked it.
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
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import Pipe, get_context, util
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from fusioncache.accelerators.precompile.entry_compiler import (
    DIED,
    NO_WORKER,
    CompileTask,
    EntryCompiler,
    TaskOutcome,
    gpu_in_use,
)
from fusioncache.backends.api import BACKENDS, backend_class
from fusioncache.backends.torch_settings import is_device_lost
from fusioncache.process.warning import logger
from fusioncache.store import Store

TICK = 0.25
MIN_HANG_SECONDS, MAX_HANG_SECONDS, TIMES = 60.0, 300.0, 8.0
"""Seconds without a finished task after which workers hang: ``TIMES`` the longest compile, within these."""
REST_SECONDS, STAY_SECONDS, IDLE_SECONDS = 5.0, 30.0, 300.0
"""Seconds for which idle workers keep the GPU open: with little free memory, with enough, and with enough while they
hold code for any sizes. The pool process ends after the last of these without a task. The second length comes soon,
and others follow: live workers save the half second in which new ones would open the GPU."""
LONG_SECONDS = 0.2
"""Seconds from which a task of known code compiled a kernel. Finding the kernels takes a tenth of that."""
OPENING = 2
"""How many workers open a GPU at once while tasks wait. CUDA opens it for one process after another, so that with eight
at once the longest task would begin when the last one is ready: on an H200 after 1.0 s instead of 0.25."""
ANSWER_SECONDS = 3.0
"""How long idle workers may take to answer, or to end before they are killed."""

ROOM_BYTES = 16 << 30
"""Bytes of a GPU that must be free for idle workers to stay. Each holds about half a GiB."""

_PR_SET_PDEATHSIG = 1


@dataclass(eq=False, slots=True)
class _WorkerProcess:
    """A worker, which does one task at a time.

    Attributes:
        process: the worker.
        connection: to the worker.
        is_ready: whether it has started, so that it can take tasks.
        task: the number of its current task; None for none.
        code: the number of the general region whose code its last task needed; None if it did not hold that before.
        codes: the numbers of the general regions whose code it holds.
    """

    process: BaseProcess
    connection: Connection
    is_ready: bool = False
    task: int | None = None
    code: int | None = None
    codes: set[int] = field(default_factory=set)

    def end(self, deadline: float) -> None:
        """Waits for the process to end until the deadline (of ``time.monotonic``), then kills it."""
        self.process.join(max(0.0, deadline - time.monotonic()))
        self.process.kill()
        self.process.join(TICK)
        self.connection.close()


class Workers:
    """Scheduler of the workers, which live while there are tasks, or while the code that they hold may serve more.

    A task that needs code for any sizes goes to a worker that holds it; others go to any free worker. nvFuser compiles
    some code again at most sizes, which takes as long in any worker. So if code that a worker held took
    ``LONG_SECONDS`` at the last size, any free worker takes the task while those that hold the code are busy.

    If a worker dies, its task is refused, and another replaces it. If one dies before it is ready, all are given up.

    Args:
        connection: to the process that sends the tasks.
        jobs: the maximum number of workers.
        work: runs a worker, given its connection and the number of the GPU to open: see ``work_for``.
        clock: returns seconds of a monotonic clock.
    """

    def __init__(
        self,
        connection: Connection,
        jobs: int,
        work: Callable[[Connection, int | None], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._connection = connection
        self._jobs = jobs
        self._work = work
        self._clock = clock
        self._workers: list[_WorkerProcess] = []
        self._waiting: dict[int, PackedTask] = {}
        self._seconds: dict[int | None, float] = {}  # of the last task of each code that its worker held
        self._is_early, self._is_unfit = True, False
        self._longest = 0.0
        self._since = self._looked = clock()

    def run(self, owner: int) -> bool:
        """Runs until the owner has ended or has long sent no task. Returns False if workers are unfit or hang.

        Raises:
            OSError: if no worker can be started, for example for lack of memory.
        """
        while os.getppid() == owner:
            ready = wait([self._connection, *(worker.connection for worker in self._workers)], TICK)
            try:
                received = self._connection.recv() if self._connection in ready else None
            except (EOFError, OSError):
                break
            if received:
                self._add(*received)
            for worker in [worker for worker in self._workers if worker.connection in ready]:
                self._receive(worker)
            if self._is_unfit or self._has_hung():
                return False
            if self._waiting:
                busy = sum(worker.task is not None for worker in self._workers)
                self._open(next(iter(self._waiting.values())).device, busy + len(self._waiting))
                self._hand_out()
            if self._has_tasks():
                continue
            idle = self._clock() - self._since
            if idle >= REST_SECONDS and not self._is_early and not self._should_keep_workers(idle):
                self._close()
            if idle >= IDLE_SECONDS:
                break
        if not self._has_tasks():
            self._close()
        return True

    def _has_tasks(self) -> bool:
        return bool(self._waiting) or any(worker.task is not None for worker in self._workers)

    def _add(self, tasks: dict[int, PackedTask], device: int | None, jobs: int, opening: int) -> None:
        """Adds tasks for at most ``jobs`` workers. ``opening`` workers start now, to open the GPU before the tasks.

        If all do, a model is about to be made, and they wait for the first task.
        """
        self._jobs = jobs
        self._is_early = self._is_early and opening == jobs
        self._since = self._clock()
        self._waiting |= tasks
        self._open(device, opening, at_once=opening)

    def _open(self, device: int | None, wanted: int, *, at_once: int = OPENING) -> None:
        """Starts the missing of ``wanted`` workers, at most ``jobs``, which open this GPU, so many at once."""
        missing = min(self._jobs, wanted) - len(self._workers)
        starting = sum(not worker.is_ready for worker in self._workers)
        for _ in range(min(missing, at_once - starting)):
            ours, theirs = Pipe()
            with theirs:
                process = get_context("fork").Process(target=self._work, args=(theirs, device))
                process.start()
            self._workers.append(_WorkerProcess(process, ours))

    def _close(self) -> None:
        """Ends all workers."""
        workers, self._workers = self._workers, []
        for worker in workers:
            with suppress(OSError):
                worker.connection.send(None)
        deadline = time.monotonic() + ANSWER_SECONDS
        for worker in workers:
            worker.end(deadline)

    def _should_keep_workers(self, idle: float) -> bool:
        """True if idle workers may keep the GPU open after this many seconds.

        Raises nothing: if a worker does not answer how much memory is free, the result is False.
        """
        ready = [worker for worker in self._workers if worker.is_ready]
        keepers = [worker for worker in ready if worker.codes]
        if not ready or (idle >= STAY_SECONDS and not keepers):
            return False
        if self._clock() - self._looked < REST_SECONDS:
            return True
        self._looked = self._clock()
        worker = (keepers or ready)[0]
        try:
            worker.connection.send(has_room)
            return worker.connection.poll(ANSWER_SECONDS) and worker.connection.recv()
        except (EOFError, OSError) as error:
            logger.info("workers are closed", exc_info=error)
            return False

    def _hand_out(self) -> None:
        """Sends waiting tasks, the longest first, to a worker that holds their code, or else to any free worker."""
        for number, task in sorted(self._waiting.items(), key=self._sort_key):
            free = [worker for worker in self._workers if worker.is_ready and worker.task is None]
            if not free:
                break
            holding = [worker for worker in self._workers if task.code in worker.codes]
            idle = [worker for worker in holding if worker in free]
            if holding and not idle and self._seconds.get(task.code, 0.0) < LONG_SECONDS:
                continue
            worker = min(idle or free, key=lambda worker: len(worker.codes))
            try:
                worker.connection.send_bytes(task.content)
            except OSError:  # it died, and its closed connection is read next
                continue
            del self._waiting[number]
            worker.task, worker.code = number, task.code if task.code in worker.codes else None
            if task.code is not None:
                worker.codes.add(task.code)

    def _sort_key(self, numbered: tuple[int, PackedTask]) -> tuple[float, float]:
        """Returns a key that sorts tasks by their expected time, the longest first."""
        _, task = numbered
        return -self._seconds.get(task.code, 0.0), -task.weight

    def _receive(self, worker: _WorkerProcess) -> None:
        """Reads a worker's message (it is ready, or the outcome of its task), or detects that it died."""
        try:
            outcome = worker.connection.recv()
        except (EOFError, OSError):
            outcome = TaskOutcome("refused", DIED, temporary=True)
            self._is_unfit |= not worker.is_ready
            self._workers.remove(worker)
            worker.end(time.monotonic())
        number, worker.task, worker.is_ready = worker.task, None, True
        self._is_unfit |= outcome == NO_WORKER
        if number is not None and outcome != NO_WORKER:
            if worker.code is not None:
                self._seconds[worker.code] = outcome.seconds
            self._report(number, outcome)

    def _report(self, number: int, outcome: TaskOutcome) -> None:
        if outcome.result == "compiled":
            self._longest = max(self._longest, outcome.seconds)
        self._since = self._clock()
        with suppress(OSError):
            self._connection.send((number, outcome))

    def _has_hung(self) -> bool:
        longest = self._longest
        allowed = min(max(MIN_HANG_SECONDS, TIMES * longest), MAX_HANG_SECONDS) if longest else MAX_HANG_SECONDS
        return self._has_tasks() and self._clock() - self._since > allowed


def main(descriptor: str, owner: str, directory: str, backend: str, jobs: str, patience: str) -> None:
    """Runs workers for another process, then ends this one. The workers end with it, even in the middle of a task.

    Args:
        descriptor: of the connection to the process that sends the tasks.
        owner: the id of that process.
        directory: of the store.
        backend: the backend of most tasks.
        jobs: the maximum number of workers.
        patience: see ``CompilePool``.
    """
    with suppress(Exception):  # each worker then fails alike
        if backend in BACKENDS:
            backend_class(backend).prepare()
    gc.collect()
    gc.freeze()  # the collector does not touch frozen objects, so their pages are not copied for a child
    work = partial(work_for, os.getpid(), Path(directory), backend, float(patience))
    is_well = Workers(Connection(int(descriptor)), int(jobs), work).run(int(owner))
    os._exit(0 if is_well else 1)


def has_room() -> bool:
    """True if a GPU is in use and has at least ``ROOM_BYTES`` of free memory."""
    import torch

    return gpu_in_use() is not None and torch.cuda.mem_get_info()[0] >= ROOM_BYTES


def compile_timed(compiler: EntryCompiler, task: CompileTask) -> TaskOutcome:
    """Compiles a task in a worker, and returns its outcome with the seconds that it took."""
    begun, starting = time.perf_counter(), compiler.starting
    outcome = compiler.compile(task)
    if outcome.result == "refused" and is_device_lost():
        os._exit(1)  # each further task would fail in this process
    return replace(outcome, seconds=time.perf_counter() - begun, on_start=compiler.starting - starting)


def open_device(backend: str, device: int | None) -> bool:
    """Opens the GPU of this number, and returns True if this process can compile."""
    try:
        if backend in BACKENDS:
            backend_class(backend).open_device(device)
    except Exception as error:  # after any error this process cannot compile
        print(f"fusioncache: a worker is of no use: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    return True


def work_for(
    parent: int, directory: Path, backend: str, patience: float, connection: Connection, device: int | None
) -> None:
    """Runs a worker in this process: compiles each task and calls each function that arrives, until None arrives.

    Args:
        parent: the id of the pool process, with which the worker ends.
        directory: of the store.
        backend: the backend of most tasks.
        patience: see ``CompilePool``.
        connection: to the pool process. The first message says that the worker is ready.
        device: the number of the GPU to open; None for none in particular.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the call
        os._exit(1)
    util.Finalize(None, atexit._run_exitfuncs, exitpriority=0)  # compilers remove files at exit
    compiler = EntryCompiler(Store.open(directory), patience=patience)
    is_open = open_device(backend, device)
    connection.send(None)
    while (received := connection.recv()) is not None:
        if not isinstance(received, CompileTask):
            connection.send(received())
        else:
            connection.send(compile_timed(compiler, received) if is_open else NO_WORKER)


@dataclass(frozen=True, slots=True)
class PackedTask:
    """A task, pickled for a worker.

    Attributes:
        content: the pickled task, which ``Connection.recv`` reads.
        device: the number of its GPU; None for any.
        weight: the expected time to compile it, relative to other tasks.
        code: the number of the general region whose code it needs; None if it needs none.
    """

    content: bytes
    device: int | None
    weight: float
    code: int | None
