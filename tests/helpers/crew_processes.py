"""Crews whose nursery is a fork of the test's own process, so that nothing is imported anew, and whose workers play.

What a worker does with an entry goes by its id. A task that is a request is compiled as ever, with the backend that the
test has put in place of the registry's.
"""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fusioncache.accelerators.precompile import crew, nursery, offspring, worker
from fusioncache.accelerators.precompile.entry_compiler import EntryCompiler, Outcome

WAIT = 240.0
"""Seconds after which a test that waits for something fails: for what never happens, on however busy a machine."""


class ForkedModule(offspring.Forked):
    """A module's ``main`` in a fork of this process, with as much of ``Popen`` as a crew needs."""

    returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                number, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                number, status = self.pid, 0
            if number == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (WAIT if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("nursery", timeout or WAIT)
            time.sleep(0.005)
        return self.returncode or 0


def fork_module(module: str, arguments: list[str], connection: socket.socket, *, quiet: bool) -> ForkedModule:
    """Stands in for ``start_module``."""
    mains: dict[str, Callable[..., None]] = {
        "fusioncache.accelerators.precompile.nursery": nursery.main,
        "fusioncache.accelerators.precompile.worker": worker.main,
    }
    descriptor = os.dup(connection.fileno())
    forked = ForkedModule(lambda: mains[module](str(descriptor), *arguments), [])
    os.close(descriptor)
    connection.close()
    return forked


def play(self: EntryCompiler, id_: str) -> Outcome:
    """Stands in for ``EntryCompiler.compile``: does what the id says, and leaves a line for it beside the store."""
    assert self._store.directory is not None
    directory = self._store.directory.parent
    with (directory / "played").open("a") as file:
        file.write(json.dumps([id_, os.getpid()]) + "\n")
    match id_.split():
        case ["kill", *_]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["hang", *_]:
            os.kill(os.getpid(), signal.SIGSTOP)
        case ["sleep", seconds, *_]:
            time.sleep(float(seconds))
        case ["wait", name, *_]:
            wait_until((directory / name).exists)
    return Outcome("refused", id_)


def read_played(directory: Path) -> list[tuple[str, int]]:
    """Returns the ids that workers were given, each with the worker's process, in order."""
    file = directory / "played"
    return [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def wait_until(done: Callable[[], object]) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + WAIT
    while not done():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    """Tells whether a process runs. One that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def make_crew(directory: Path, jobs: int, **options: bool) -> Iterator[crew.Crew]:
    """Makes a crew that ends with the test, for a store in a directory."""
    made = crew.Crew(directory / "store", jobs, "", **options)
    try:
        yield made
    finally:
        made.end()
