"""How a process of a crew starts and ends: as a fork, or anew, and never after the one that started it."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from fusioncache.process.settings import JOBS

_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 0.5

_START = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from {module} import main; main(*sys.argv[1:])"

_RANK_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    *("NVFUSER_MASTER_ADDR", "NVFUSER_MASTER_PORT"),
)
"""What says that a process is a rank of a job, and where the others are. A worker is none, and must meet nobody."""

_MEMORY = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=65535")
"""Has glibc keep all small pieces of memory for the thread that had them, which spares nvFuser a fifth of its time."""


def can_fork() -> bool:
    """Tells whether a process without threads may fork and go on in the child. On macOS its libraries may not."""
    return hasattr(os, "fork") and sys.platform.startswith("linux")


def start_module(module: str, arguments: Iterable[str], connection: socket.socket, *, quiet: bool) -> subprocess.Popen:
    """Starts a process that calls ``main`` of a module with the descriptor of a connection and these arguments.

    It imports from where this process does, is no rank of its job, and starts no crew of its own.

    Args:
        module: its name.
        arguments: texts.
        connection: one end, which is closed here.
        quiet: whether nobody is to see what it writes to stderr.

    Raises:
        OSError: if no process can be started.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}
    environment[JOBS.name] = "0"
    environment.setdefault(*_MEMORY)
    start = [sys.executable, "-W", "ignore", "-c", _START.format(module=module), json.dumps(sys.path)]
    with connection:
        descriptor = connection.fileno()
        return subprocess.Popen(
            [*start, str(descriptor), *arguments],
            env=environment,
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if quiet else None,
        )


class Forked:
    """A process that was forked off this one, with as much of ``subprocess.Popen`` as is needed of it.

    Args:
        work: what it does.
        inherited: connections of this process that it closes, so that their other ends hear of it if this process dies.
    """

    def __init__(self, work: Callable[[], None], inherited: Iterable[socket.socket]):
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self._ended = False
        self.pid = os.fork()
        if not self.pid:
            _live(work, inherited, parent)

    def poll(self) -> int | None:
        """Returns something if the process has ended, and None if not."""
        if not self._ended:
            with suppress(ChildProcessError):
                self._ended = os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        return 0 if self._ended else None

    def kill(self) -> None:
        """Ends the process, whatever it does."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _live(work: Callable[[], None], inherited: Iterable[socket.socket], parent: int) -> None:
    """Works in a forked process, and ends it."""
    status = 1
    try:
        end_with(parent)
        for connection in inherited:
            connection.close()
        work()
        status = 0
    except BaseException:  # of which nobody but stderr may hear: this is a copy of another process
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            atexit._run_exitfuncs()  # compilers have files to remove
        os._exit(status)


def end_with(parent: int) -> None:
    """Has this process end at once when its parent does, where the system can do that."""
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        os._exit(1)


@contextmanager
def ending_with(parent: int) -> Iterator[None]:
    """Ends this process soon after its parent has ended, while it does something that takes long."""

    def look(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(1)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
