"""Processes that compile for this one, as futures: a process of its own (``workers.py``) has a pool of workers.

The pool of ``concurrent.futures`` is not in this process: a compiler may hold Python's lock for seconds, in which the
pool's threads could hand out nothing. The other process has its own command line and environment too, so that no script
is imported again and no other use of ``multiprocessing`` changes.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from fusioncache.accelerators.precompile.entry_compiler import NO_WORKER, TaskOutcome
from fusioncache.accelerators.precompile.requests import CompileTask
from fusioncache.process import forks
from fusioncache.process.settings import JOBS
from fusioncache.process.warning import warn_once

logger = logging.getLogger("fusioncache")

END_SECONDS = 5.0
"""How long the process with the workers may take to end."""

MOST = 4
"""With more the gain is small: a first step has some ten templates, of which one or two take half as long as all."""
_CORES_OF_A_RANK = {"nvfuser": 3, "inductor": 4}
"""How many cores a rank has to have, by backend, before one process more pays. A C++ compiler takes memory as well."""
_RANKS_HERE = "LOCAL_WORLD_SIZE"

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from fusioncache.accelerators.precompile.workers import main; main(*sys.argv[1:])"
)
_RANK_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    *("NVFUSER_MASTER_ADDR", "NVFUSER_MASTER_PORT"),
)
"""What makes a process a rank of a job. A worker is none, and must not connect to the others."""
_MEMORY = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=65535")
"""Has glibc keep all small pieces of memory for the thread that had them, which spares nvFuser a fifth of its time."""


class CompilePool:
    """Compiles tasks in other processes for a store.

    Args:
        directory: of the store.
        jobs: how many processes compile at most, besides this one.
        backend: that most is compiled with.
        patience: how many seconds a worker waits for another process that compiles the same. With 0 it refuses.
        quiet: whether to discard what the processes write to stderr.
    """

    def __init__(self, directory: Path, jobs: int, backend: str, *, patience: float = 0.0, quiet: bool = True):
        self._arguments = [str(directory), backend, str(jobs), str(patience)]
        self._quiet = quiet
        self._lock, self._sending = forks.lock(), forks.lock()
        self._process: subprocess.Popen | None = None
        self._connection: Connection | None = None
        self._futures: dict[int, Future[TaskOutcome]] = {}
        self._numbers = 0
        self.has_failed = False
        forks.register(self)

    @property
    def pid(self) -> int | None:
        """The process that has the workers; None if there is none."""
        return self._process.pid if self._process else None

    def start(self) -> bool:
        """Starts the process with the workers if there is none, and returns whether there is one. Waits for nothing."""
        with self._lock:
            if self._process is None and not self.has_failed:
                try:
                    self._connection, theirs = Pipe()
                    with theirs:
                        self._process = start_process(self._arguments, theirs, quiet=self._quiet)
                except OSError as error:
                    logger.info("no process to compile with", exc_info=error)
                    self.has_failed = True
                    return False
                atexit.register(self.end)
                arguments = self._connection, self._process
                threading.Thread(target=self._listen, args=arguments, daemon=True, name="fusioncache pool").start()
            return self._process is not None

    def open_early(self, device: int | None) -> None:
        """Has all workers open a GPU before there is a task, where there will be many."""
        if self.start():
            self._send({}, device)

    def submit(self, tasks: Sequence[CompileTask]) -> list[Future[TaskOutcome]]:
        """Hands tasks over, and returns a future of what becomes of each. The first ones are compiled first."""
        futures: list[Future[TaskOutcome]] = [Future() for _ in tasks]
        if not self.start():
            for future in futures:
                future.set_result(NO_WORKER)
            return futures
        with self._lock:
            numbers = range(self._numbers, self._numbers + len(tasks))
            self._numbers += len(tasks)
            self._futures |= zip(numbers, futures, strict=True)
            self._send(dict(zip(numbers, tasks, strict=True)))
        return futures

    def end(self) -> None:
        """Ends all processes, whatever they do at the moment."""
        with self._lock:
            process, connection, self.has_failed = self._process, self._connection, True
        if process is None or connection is None:
            return
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
            end.shutdown(socket.SHUT_WR)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def after_fork(self) -> None:
        """Leaves the processes to the parent in a forked child, which does without."""
        process, self._process, self.has_failed, self._futures = self._process, None, True, {}
        if process is not None and self._connection is not None:
            self._connection.close()
            process.returncode = 0  # it is no child of this process, which must not wait for it

    def _send(self, tasks: dict[int, CompileTask], device: int | None = None) -> None:
        """Sends tasks in a thread: the other process does not read while it imports."""
        connection, content = self._connection, pickle.dumps((tasks, device))
        assert connection is not None

        def write() -> None:
            with self._sending, suppress(OSError):
                connection.send_bytes(content)

        threading.Thread(target=write, daemon=True, name="fusioncache pool").start()

    def _listen(self, connection: Connection, process: subprocess.Popen) -> None:
        try:
            while True:
                number, outcome = connection.recv()
                self._futures.pop(number).set_result(outcome)
        except (EOFError, OSError):
            pass
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            self._lose(connection, process)

    def _lose(self, connection: Connection, process: subprocess.Popen) -> None:
        """Takes note that the process has ended. After one that failed there is no other."""
        with self._lock:
            if process.returncode != 0 and not self.has_failed:
                self.has_failed = True
                warn_once("processes that compile beside this one failed or hung: it compiles alone")
            self._process = None
            lost, self._futures = self._futures, {}
        atexit.unregister(self.end)
        connection.close()
        for future in lost.values():
            future.set_result(NO_WORKER)


def start_process(arguments: Sequence[str], connection: Connection, *, quiet: bool) -> subprocess.Popen:
    """Starts the process that has the workers: it imports from where this one does, and is no rank of its job.

    Raises:
        OSError: if no process can be started.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}
    environment[JOBS.name] = "0"
    environment.setdefault(*_MEMORY)
    start = [sys.executable, "-W", "ignore", "-c", _START, json.dumps(sys.path)]
    return subprocess.Popen(
        [*start, str(connection.fileno()), str(os.getpid()), *arguments],
        env=environment,
        pass_fds=[connection.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if quiet else None,
    )


def choose_jobs(asked: int | None, backend: str) -> int:
    """Returns how many processes are to compile beside this one.

    Args:
        asked: what the user asked for; None asks the environment, and if that does not say, it is what pays.
        backend: that compiles most.

    Raises:
        TypeError: if ``asked`` is no number.
        ValueError: if it is less than 0, or the environment says something else than a number.
    """
    if asked is not None and (not isinstance(asked, int) or isinstance(asked, bool)):
        raise TypeError(f"jobs must be a number of processes or None, got {asked!r}")
    if asked is not None and asked < 0:
        raise ValueError(f"jobs must be at least 0, got {asked}")
    said = JOBS.get_text()
    if not can_have_pool():
        return 0
    if asked is not None:
        return asked
    return int(said) if said else _find_what_pays(backend)


def can_have_pool() -> bool:
    """Returns whether other processes can work for this one: workers are forked, and end with their parent."""
    return sys.platform.startswith("linux") and bool(sys.executable)


def _find_what_pays(backend: str) -> int:
    """Returns how many processes pay: as many as there are cores for, but for those of this and other ranks."""
    needed = _CORES_OF_A_RANK.get(backend)
    if needed is None:
        return 0
    return max(0, min(MOST, (count_cores() // _count_ranks() - 1) // needed))


def count_cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _count_ranks() -> int:
    """Returns how many ranks of this process's job are on this host."""
    with suppress(ValueError):
        return max(1, int(os.environ.get(_RANKS_HERE, "1")))
    return 1
