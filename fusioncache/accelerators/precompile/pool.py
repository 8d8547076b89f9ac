"""A pool of processes that compile for this one and return futures.

Workers are not children of this process, but of a separate pool process: here a compiler may hold the GIL for seconds,
and no task could be handed out meanwhile. The pool process has its own command line and environment, so that no script
is imported again and other uses of ``multiprocessing`` do not change. It imports what workers need, and forks them: see
``workers.py``.

It opens no device. Workers compile what is not stored and what no other process is compiling. The store's turn decides
that, also among the workers of several ranks and their owners.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
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
from fusioncache.accelerators.precompile.workers import PackedTask, has_room
from fusioncache.backends.api import backend_class
from fusioncache.backends.torch_settings import read_variables
from fusioncache.cache.cache import Cache
from fusioncache.ir import Graph
from fusioncache.process import forks
from fusioncache.process.settings import ACCELERATORS, JOBS, STORE, VERIFY
from fusioncache.process.warning import log_errors, logger, warn_once
from fusioncache.store import Entry, Store, check, default_path
from fusioncache.store.entry import is_family

END_SECONDS = 5.0
"""How long the pool process may take to end."""

MOST = 8
"""More processes gain little: a first step has 10 to 25 templates, and two or three of them take half of the time."""
FEW = 4
"""The largest number of processes that open a GPU with little free memory: see ``workers.ROOM_BYTES``."""
_CORES_OF_A_RANK = {"nvfuser": 2, "inductor": 4}
"""Cores of a rank that justify one more process, by backend. A C++ compiler takes memory as well."""
_RANKS_HERE = "LOCAL_WORLD_SIZE"
_DEFAULT = "nvfuser"
"""The backend of the pool that is started before a cache asks for one."""
GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")
"""Files that exist on a machine with a GPU. CUDA is not asked, because forked children could not use it then."""
_COMMANDS = "fusioncache.cli.main"
_PREFIXES = ("CUDA_", "NVFUSER_", "FUSIONCACHE_")
"""Prefixes of variables. A process that was started with other values would refuse tasks, or open another GPU."""
_SET_BY_TORCH = ("CUDA_MODULE_LOADING",)
"""A variable that torch sets when it opens a GPU."""

_START = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "  # an interrupt is for the owner, and ends it
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from fusioncache.accelerators.precompile.workers import main; main(*sys.argv[1:])"
)
_RANK_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    *("NVFUSER_MASTER_ADDR", "NVFUSER_MASTER_PORT"),
)
"""Variables that make a process a rank of a job. A worker is not a rank, and must not connect to ranks."""
_MEMORY = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=65535")
"""Lets glibc cache all small freed chunks in the thread that used them, which saves a fifth of nvFuser's time."""


class CompilePool:
    """Compiles tasks for a store in other processes.

    Args:
        directory: of the store.
        jobs: the maximum number of processes that compile, besides this one.
        backend: the backend of most tasks.
        patience: how many seconds a worker waits for another process that compiles the same. With 0 it refuses.
        quiet: whether to discard the stderr of the processes.

    Attributes:
        jobs: the argument; less once tasks are for a GPU with little free memory.
        backend: the argument.
        environment: the variables that a worker depends on, as of the start of the processes.
        is_wanted: whether a cache asked for the pool. One that was started beside imports may stay unused.
        has_failed: whether no process is started any more.
        answered: when the last outcome arrived, by ``time.perf_counter``.
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
        """The id of the pool process, or None."""
        return self._process.pid if self._process else None

    def start(self) -> bool:
        """Starts the pool process if it is not running; True if it runs now. Does not wait."""
        with self._lock:
            if self._process is None and not self.has_failed:
                self.environment = _read_environment()
                try:
                    self._connection, theirs = Pipe()
                    with theirs:
                        self._process = start_process(self._arguments, theirs, quiet=self._quiet)
                    self._start_thread(self._listen, self._connection, self._process)
                except (OSError, RuntimeError) as error:  # at interpreter shutdown no thread can be started
                    logger.info("no process to compile with", exc_info=error)
                    self.has_failed = True
                    if self._process is not None:
                        self._process.kill()
                        self._process = None
                    return False
                atexit.register(self.end)
            return self._process is not None

    def open_early(self, device: int | None, workers: int | None = None) -> None:
        """Starts workers, all by default, and lets them open a GPU before the first task, when tasks are expected."""
        if self.start():
            self._limit_jobs()
            self._send({}, device, workers or self.jobs)

    def submit(self, tasks: Sequence[CompileTask]) -> list[Future[TaskOutcome]]:
        """Submits tasks, and returns a future of each outcome. The longest tasks are compiled first."""
        futures: list[Future[TaskOutcome]] = [Future() for _ in tasks]
        with self._lock:  # else the process could end in between, and no future would be set
            if self.start():
                if not self._numbers:
                    self._limit_jobs()
                numbers = range(self._numbers, self._numbers + len(tasks))
                self._numbers += len(tasks)
                self._futures |= zip(numbers, futures, strict=True)
                self._send(dict(zip(numbers, map(self._pack, tasks), strict=True)))
                return futures
        for future in futures:
            future.set_result(NO_WORKER)
        return futures

    def end(self) -> None:
        """Ends all processes, even in the middle of a task."""
        with self._lock:
            process, connection, self.has_failed = self._process, self._connection, True
        if process is None or connection is None:
            return
        if not self._numbers:
            process.kill()  # it may import for seconds before it reads anything, and has nothing to clean up
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
            end.shutdown(socket.SHUT_WR)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def after_fork(self) -> None:
        """Detaches a forked child from the processes. They stay with the parent, and the child uses none."""
        process, self._process, self.has_failed, self._futures = self._process, None, True, {}
        if process is not None and self._connection is not None:
            self._connection.close()
            process.returncode = 0  # it is not a child of this process, so ``Popen`` must not wait for it

    def _pack(self, task: CompileTask) -> PackedTask:
        """Returns a task, pickled. Its weight grows as compilers' time does: more than linearly with the graph."""
        code = None
        if task.as_general is not None:
            code = self._codes.setdefault(task.as_general.general.graph, len(self._codes))
        graph = task.request.graph
        weight = len(graph.ops) * (len(graph.inputs) + len(graph.outputs))
        return PackedTask(pickle.dumps(task), task.device, weight, code)

    def _limit_jobs(self) -> None:
        """Lowers the number of processes if the GPU in use has little free memory, which models may need."""
        if self.jobs > FEW and gpu_in_use() is not None and not has_room():
            self.jobs = FEW

    def _send(self, tasks: dict[int, PackedTask], device: int | None = None, opening: int = 0) -> None:
        """Sends tasks from a thread, because the pool process does not read while it imports: see ``Workers``."""
        connection, process, jobs = self._connection, self._process, self.jobs
        assert connection is not None and process is not None

        def write() -> None:
            with self._sending, suppress(OSError):
                connection.send((tasks, device, jobs, opening))

        try:
            self._start_thread(write)
        except RuntimeError:  # as at interpreter shutdown
            process.kill()  # its end sets all futures

    @staticmethod
    def _start_thread(target: Callable[..., None], *args: object) -> None:
        threading.Thread(target=target, args=args, daemon=True, name="fusioncache pool").start()

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
            self._handle_exit(connection, process)

    def _handle_exit(self, connection: Connection, process: subprocess.Popen) -> None:
        """Handles the end of the process. After a failure the pool starts no other, and warns if a cache wanted it."""
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
    """Returns the pool of a store; None if that has no directory. The first cache to ask sets the number of processes.

    Args:
        store: receives the executables.
        jobs: the maximum number of processes.
        backend: the backend of most tasks.
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

    It is started if there are enough cores for nvFuser, the store probably lacks something, and no variable forbids it.
    Never raises: errors are reported when a cache asks for the pool.
    """
    with log_errors("no process is started beside the imports"):
        if not _is_likely_to_train() or find_spec("nvfuser_direct") is None:
            return
        is_off = VERIFY.get_text() or ACCELERATORS.get_text() or STORE.get_text() == "0"
        jobs = 0 if is_off else choose_jobs(None, _DEFAULT)
        if jobs:
            path = default_path().resolve()
            entries = _list_entries(path)
            with _making:
                if path not in pools and _expects_tasks(entries, _DEFAULT):
                    pools[path] = pool = CompilePool(path, jobs, _DEFAULT)
                    pool.is_wanted = False
                    pool.start()


def _list_entries(path: Path) -> Sequence[Entry]:
    """Returns the entries of a store; none if it does not exist. Creates nothing, contacts no remote, never warns.

    Raises:
        StoreError: if the directory cannot be used.
    """
    if not path.exists():
        return ()
    check(path)
    return Store.open(path, remote="").entries()


def _is_likely_to_train() -> bool:
    """True if this process uses a GPU, or may use one and is neither a command nor a child of multiprocessing."""
    if gpu_in_use() is not None:
        return True
    has_gpu = any(map(os.path.exists, GPU_FILES)) and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")
    # A spawned child learns its parent after it has imported the script. Until then only this private flag is set.
    is_child = parent_process() is not None or getattr(current_process(), "_inheriting", False)
    return has_gpu and not is_child and _COMMANDS not in sys.modules


def end_unused(cache: Cache) -> None:
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
    if not entries and device is not None:  # else most templates may be stored, and workers need not open the device
        pool.open_early(device)


def _expects_tasks(entries: Sequence[Entry], backend: str) -> bool:
    """True if a process will probably compile: the store is empty, or has models called at several lengths.

    Such a model may be called at a length that is not stored. That call would have to wait for the pool's imports.
    """
    if not entries:
        return True
    return any(is_family(entry.backend) for entry in entries) and backend_class(backend).derives_sizes


def start_process(arguments: Sequence[str], connection: Connection, *, quiet: bool) -> subprocess.Popen:
    """Starts the pool process: it imports from the same paths as this one, and is not a rank of its job.

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
    """Returns the variables that select visible GPUs and configure nvFuser and this package."""
    return dict(read_variables(_PREFIXES, (), _SET_BY_TORCH))


def choose_jobs(requested: int | None, backend: str) -> int:
    """Returns how many processes shall compile beside this one.

    Args:
        requested: the user's number; None for that of the environment or, if it sets none, the number that pays.
        backend: the backend of most tasks.

    Raises:
        TypeError: if ``requested`` is not an integer.
        ValueError: if it is less than 0, or the environment's value is not a number.
    """
    if requested is not None and (not isinstance(requested, int) or isinstance(requested, bool)):
        raise TypeError(f"jobs must be a number of processes or None, got {requested!r}")
    if requested is not None and requested < 0:
        raise ValueError(f"jobs must be at least 0, got {requested}")
    said = JOBS.get_text()
    if not can_have_pool():
        return 0
    if requested is not None:
        return requested
    return int(said) if said else _count_useful_processes(backend)


def can_have_pool() -> bool:
    """True if other processes can compile for this one: they must be forked, and end with their parent (Linux)."""
    return sys.platform.startswith("linux") and bool(sys.executable)


def _count_useful_processes(backend: str) -> int:
    """Returns how many processes pay: at most ``MOST``, as the rank's share of cores allows, less one for itself."""
    needed = _CORES_OF_A_RANK.get(backend)
    if needed is None:
        return 0
    return max(0, min(MOST, (count_cores() // _count_ranks() - 1) // needed))


def count_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _count_ranks() -> int:
    """Returns the number of ranks of this job on this host."""
    with suppress(ValueError):
        return max(1, int(os.environ.get(_RANKS_HERE, "1")))
    return 1
