"""Single flight: of all threads and processes of a machine that want the same thing, one makes it and others wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fusioncache.process import forks
from fusioncache.store.entry import StoredArtifacts
from fusioncache.store.errors import name_cause
from fusioncache.store.locks import FileLock


@dataclass(frozen=True, slots=True)
class Turn:
    """A process's turn to compile something.

    Attributes:
        artifacts: what somebody else saved while this one waited for its turn; None if it is to compile.
        alone: why others may be compiling the same at this moment; None if they wait for this one.
        waited: the seconds.
    """

    artifacts: StoredArtifacts | None
    alone: str | None
    waited: float


@dataclass(slots=True)
class _Waiting:
    """A lock between threads, and how many hold or want it."""

    lock: threading.RLock = field(default_factory=forks.lock)
    users: int = 0


class SingleFlight:
    """Hands out turns.

    Args:
        folder: where processes meet; None if they cannot.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder
        self._waiting: dict[str, _Waiting] = {}
        self._lock = forks.lock()
        forks.register(self)

    @contextmanager
    def take_turn(self, name: str, timeout: float) -> Iterator[str | None]:
        """Waits for the others, not longer than ``timeout`` seconds. Never raises ``OSError`` of its own.

        Yields:
            None, or why others may be making the same thing at this moment.
        """
        deadline = time.monotonic() + timeout
        with self._among_threads(name, timeout) as alone:
            if alone or self._folder is None:
                yield alone
                return
            # A thread waits for the file only after the threads of its own process, so that few poll it.
            lock = FileLock(self._folder / name, passing=True)
            try:
                yield _reason_to_go_alone(lock, deadline - time.monotonic())
            finally:
                lock.release()

    @contextmanager
    def _among_threads(self, name: str, timeout: float) -> Iterator[str | None]:
        with self._lock:
            waiting = self._waiting.setdefault(name, _Waiting())
            waiting.users += 1
        held = waiting.lock.acquire(timeout=max(0.0, timeout))
        try:
            yield None if held else TOO_LONG
        finally:
            if held:
                waiting.lock.release()
            with self._lock:
                waiting.users -= 1
                if not waiting.users:
                    self._waiting.pop(name, None)

    def after_fork(self) -> None:
        """Forgets, in a forked child, threads that held or wanted a turn: they do not exist there."""
        self._waiting = {}


TOO_LONG = "waited too long for another compile"


def _reason_to_go_alone(lock: FileLock, timeout: float) -> str | None:
    try:
        return None if lock.acquire(timeout) else TOO_LONG
    except OSError as error:
        return f"no lock: {name_cause(error)}"
