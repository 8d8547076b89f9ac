"""Processes that compile for this one, as futures: a process of its own has a pool of workers.

Workers are not children of this process: a compiler may hold Python's lock for seconds, in which nothing could be
handed out. The other process has its own command line and environment too, so that no script is imported again and no
other use of ``multiprocessing`` changes. It imports what its workers need, and forks them: see ``workers.py``.

It opens no device. Workers compile what the store lacks and no other process is at: the store's turn decides that, also
between the workers of several ranks and the processes that they work for.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing import Pipe, current_process, parent_process
from multiprocessing.connection import Connection
from pathlib import Path

from fusioncache.accelerators.precompile.entry_compiler import (
    NO_WORKER,
    CompileTask,
    TaskOutcome,
    gpu_in_use,
)
from fusioncache.accelerators.precompile.workers import PackedTask
from fusioncache.backends.api import backend_class
from fusioncache.backends.torch_settings import read_variables
from fusioncache.cache.cache import Cache
from fusioncache.ir import Graph
from fusioncache.process import forks
from fusioncache.process.settings import ACCELERATORS, JOBS, STORE, VERIFY
from fusioncache.process.warning import warn_once
from fusioncache.store import Entry, Store, check, default_path
from fusioncache.store.entry import is_family

logger = logging.getLogger("fusioncache")


END_SECONDS = 5.0
"""How long the process with the workers may take to end."""

MOST = 4
"""With more the gain is small: a first step has some ten templates, of which one or two take half as long as all."""
_CORES_OF_A_RANK = {"nvfuser": 3, "inductor": 4}
"""How many cores a rank has to have, by backend, before one process more pays. A C++ compiler takes memory as well."""
_RANKS_HERE = "LOCAL_WORLD_SIZE"
_DEFAULT = "nvfuser"
"""The backend of the pool that is started before a cache asks for one."""
GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")
"""What a machine with a GPU has. To ask CUDA would keep children that are forked from using it."""
_COMMANDS = "fusioncache.cli.main"
_PREFIXES = ("CUDA_", "NVFUSER_", "FUSIONCACHE_")
"""Prefixes of variables. A process that was started with other values refuses tasks, or opens another GPU."""
_SET_BY_TORCH = ("CUDA_MODULE_LOADING",)
"""A variable that torch sets when it opens a GPU."""

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

    Attributes:
        jobs: as it was given.
        backend: the same.
        environment: the variables that decide what a worker does, as they were when the processes were started.
        is_wanted: whether a cache has asked for it. One that was started beside imports may be of no use.
        has_failed: whether no process is started any more.
        answered: when it last told what became of a task, by ``time.perf_counter``.
    """

    def __init__(self, directory: Path, jobs: int, backend: str, *, patience: float = 0.0, quiet: bool = True):
        self.jobs = jobs
        self.backend = backend
        self._arguments = [str(directory), backend, str(jobs), str(patience)]
        self._quiet = quiet
        self._lock, self._sending = forks.lock(), forks.lock()
        self._process: subprocess.Popen | None = None
        self._connection: Connection | None = None
        self._futures: dict[int, Future[TaskOutcome]] = {}
        self._numbers = 0
        self._codes: dict[Graph, int] = {}
        self.environment: Mapping[str, object] = {}
        self.is_wanted = True
        self.has_failed = False
        self.answered = 0.0
        forks.register(self)

    @property
    def pid(self) -> int | None:
        """The process that has the workers; None if there is none."""
        return self._process.pid if self._process else None

    def start(self) -> bool:
        """Starts the process with the workers if there is none, and returns whether there is one. Waits for nothing."""
        with self._lock:
            if self._process is None and not self.has_failed:
                self.environment = _read_environment()
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
        """Hands tasks over, and returns a future of what becomes of each. The longest ones are compiled first."""
        futures: list[Future[TaskOutcome]] = [Future() for _ in tasks]
        with self._lock:  # else the process could end in between, and nothing would answer
            if self.start():
                numbers = range(self._numbers, self._numbers + len(tasks))
                self._numbers += len(tasks)
                self._futures |= zip(numbers, futures, strict=True)
                self._send(dict(zip(numbers, (PackedTask.pack(task, self._codes) for task in tasks), strict=True)))
                return futures
        for future in futures:
            future.set_result(NO_WORKER)
        return futures

    def end(self) -> None:
        """Ends all processes, whatever they do at the moment."""
        with self._lock:
            process, connection, self.has_failed = self._process, self._connection, True
        if process is None or connection is None:
            return
        if not self._numbers:
            process.kill()  # it may import for seconds before it looks, and has nothing to put away
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

    def _send(self, tasks: dict[int, PackedTask], device: int | None = None) -> None:
        """Sends tasks in a thread: the other process does not read while it imports."""
        connection = self._connection
        assert connection is not None

        def write() -> None:
            with self._sending, suppress(OSError):
                connection.send((tasks, device))

        threading.Thread(target=write, daemon=True, name="fusioncache pool").start()

    def _listen(self, connection: Connection, process: subprocess.Popen) -> None:
        try:
            while True:
                number, outcome = connection.recv()
                self.answered = time.perf_counter()
                self._futures.pop(number).set_result(outcome)
        except (EOFError, OSError):
            pass
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            self._lose(connection, process)

    def _lose(self, connection: Connection, process: subprocess.Popen) -> None:
        """Notes that the process has ended. After a failure no other is started, unless no cache had asked for it."""
        with self._lock:
            if process.returncode != 0 and not self.has_failed:
                self.has_failed = True
                if self.is_wanted:
                    warn_once("processes that compile beside this one failed or hung: it compiles alone")
            self._process = None
            lost, self._futures = self._futures, {}
        atexit.unregister(self.end)
        connection.close()
        for future in lost.values():
            future.set_result(NO_WORKER)


pools: dict[Path, CompilePool] = {}
"""The pools of this process, by the directory of their store."""
_making = forks.lock()


def find_pool(store: Store, jobs: int, backend: str, *, waits: bool = False) -> CompilePool | None:
    """Returns the pool of a store; None if that has no directory. The first cache to ask decides how many processes.

    Args:
        store: where what is compiled will be.
        jobs: how many processes, at most.
        backend: that most is compiled with.
        waits: see ``ahead.find_helpers``.
    """
    directory = store.directory
    if directory is None:
        return None
    with _making:
        pool = pools.get(directory)
        if pool is not None and pool.is_wanted and not pool.has_failed:
            return pool
        if pool is not None and (pool.jobs, pool.backend, pool.environment) != (jobs, backend, _read_environment()):
            pool.end()
        if pool is None or pool.has_failed:
            pools[directory] = pool = CompilePool(directory, jobs, backend)
        pool.is_wanted = True
        _start(pool, store.entries(), waits=waits)
    return pool


def start_default_pool() -> None:
    """Starts the pool that a first ``FusionCache()`` will want, while this process imports and makes a model.

    It is started where nvFuser has the cores, a store is likely to lack something and no variable says otherwise.
    Never raises: what is wrong is said when a cache asks.
    """
    try:
        if not _may_train() or find_spec("nvfuser_direct") is None:
            return
        is_off = VERIFY.get_text() or ACCELERATORS.get_text() or STORE.get_text() == "0"
        jobs = 0 if is_off else choose_jobs(None, _DEFAULT)
        if jobs:
            path = default_path().resolve()
            entries = _look_into(path)
            with _making:
                if path not in pools and _expects_tasks(entries, _DEFAULT):
                    pools[path] = pool = CompilePool(path, jobs, _DEFAULT)
                    pool.is_wanted = False
                    pool.start()
    except Exception as error:
        logger.info("no process is started beside the imports", exc_info=error)


def _look_into(path: Path) -> Sequence[Entry]:
    """Returns the entries of a store; none if it does not exist. Creates nothing, contacts no remote, does not warn.

    Raises:
        StoreError: if the directory cannot be used.
    """
    if not path.exists():
        return ()
    check(path)
    return Store.open(path, remote="").entries()


def _may_train() -> bool:
    """True if this process has a GPU open, or is no command and no child of multiprocessing, and can open one."""
    if gpu_in_use() is not None:
        return True
    has_gpu = any(map(os.path.exists, GPU_FILES)) and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")
    # A spawned child gets its parent after it has imported the script. Until then only this private flag tells.
    is_child = parent_process() is not None or getattr(current_process(), "_inheriting", False)
    return has_gpu and not is_child and _COMMANDS not in sys.modules


def end_unwanted(cache: Cache) -> None:
    """Ends the pool that was started beside imports, if a ``FusionCache`` with a store does not use it.

    Args:
        cache: of the ``FusionCache``.
    """
    with _making:
        unwanted = [pool for pool in pools.values() if not (pool.is_wanted or pool.has_failed)]
        if unwanted and cache.store is not None:
            for pool in unwanted:
                pool.end()


def _start(pool: CompilePool, entries: Sequence[Entry], *, waits: bool = False) -> None:
    """Starts a pool for a store with these entries, unless it waits for tasks and none are expected."""
    device = gpu_in_use()
    if not waits or _expects_tasks(entries, pool.backend):
        pool.start()
    if not entries and device is not None:  # else most may be there already, and then no device is opened for it
        pool.open_early(device)


def _expects_tasks(entries: Sequence[Entry], backend: str) -> bool:
    """True if a process is likely to compile: the store is empty, or has models that are called at several lengths.

    Such a model may be called at a length that is not stored. A call would then wait for the pool's imports first.
    """
    if not entries:
        return True
    return any(is_family(entry.backend) for entry in entries) and backend_class(backend).derives_sizes


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


def _read_environment() -> dict[str, object]:
    """Returns the variables that decide which GPUs a process sees, and what nvFuser and this package do."""
    return dict(read_variables(_PREFIXES, (), _SET_BY_TORCH))


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
