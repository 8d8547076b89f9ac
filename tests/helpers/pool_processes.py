"""Pools whose process is a fork of the test's process; its fake workers do what a task's digest says."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

from fusioncache.accelerators.precompile import pool, workers
from fusioncache.accelerators.precompile.entry_compiler import CompileTask, EntryCompiler, TaskOutcome

WAIT = 240.0
"""Seconds after which a test stops waiting and fails; enough even on a busy machine."""


class ForkedProcess:
    """Runs a function in a fork of this process, with the part of ``Popen``'s interface that a pool needs."""

    returncode: int | None = None

    def __init__(self, work: Callable[[], None]):
        self._reaping = Lock()
        self.pid = os.fork()
        if not self.pid:
            try:
                work()
            finally:
                os._exit(1)

    def poll(self):
        with self._reaping:  # the system returns the exit code to one thread only
            if self.returncode is None:
                number, status = os.waitpid(self.pid, os.WNOHANG)
                if number == self.pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (WAIT if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("workers", timeout or WAIT)
            time.sleep(0.005)
        return self.returncode or 0

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork_process(arguments: Sequence[str], connection: Connection, *, quiet: bool) -> ForkedProcess:
    """Replaces ``start_process``: forks this process instead."""
    owner = str(os.getpid())
    return ForkedProcess(lambda: workers.main(str(os.dup(connection.fileno())), owner, *arguments))


def fake_compile(self: EntryCompiler, task: CompileTask) -> TaskOutcome:
    """Replaces ``EntryCompiler.compile``: does what the digest says, and writes a line to a file beside the store."""
    assert self._store.directory is not None
    directory = self._store.directory.parent
    with (directory / "started").open("a") as file:
        file.write(json.dumps([task.digest, os.getpid()]) + "\n")
    match task.digest.split():
        case ["kill", *_]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["hang", *_]:
            os.kill(os.getpid(), signal.SIGSTOP)
        case ["wait", name, *_]:
            wait_until((directory / name).exists)
    return TaskOutcome("refused", task.digest)


def make_task(digest: str) -> CompileTask:
    """Returns a task. Text after ``of`` is the code for any sizes that it needs. Each ``long`` adds to its weight."""
    code = digest.partition(" of ")[2]
    made = SimpleNamespace(general=SimpleNamespace(graph=code)) if code else None
    request = SimpleNamespace(graph=SimpleNamespace(ops=["long"] * digest.count("long"), inputs=[0], outputs=[]))
    return CompileTask(request, None, digest, as_general=made)  # type: ignore[arg-type]


def make_tasks(*digests: str) -> list[CompileTask]:
    return [make_task(digest) for digest in digests]


def read_started(directory: Path) -> list[tuple[str, int]]:
    """Returns the digests of tasks that workers got, each with the worker's process ID, in order."""
    file = directory / "started"
    return [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def wait_until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT
    while not done():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    """True if a process runs. A process that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may be gone between opening and reading
        return False


@contextmanager
def make_pool(directory: Path, jobs: int, backend: str = "") -> Iterator[pool.CompilePool]:
    made = pool.CompilePool(directory / "store", jobs, backend)
    try:
        yield made
    finally:
        made.end()
