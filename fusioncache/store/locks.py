"""Locks between processes. The kernel frees what a process holds when it dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fusioncache.process import forks
from fusioncache.process.files import free, remove
from fusioncache.store.files import Refusal

_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
_in_vain: set[tuple[Path, bool]] = set()
"""The locks for which this process waited in vain, each with whether it was to be shared."""


class FileLock:
    """A lock on a file, between processes and between threads. As a context it releases what it holds in the end.

    Why not the library ``filelock``: its locks on files cannot be shared (those that can are sqlite databases), it
    leaves every lock's file behind, here one for each key that was ever compiled, and where the kernel has no locks it
    takes files that exist for locks that are held, which a killed process holds on to. Forked children are handled by
    both.

    Args:
        path: of the file.
        passing: whether the file goes when the lock is released.
    """

    def __init__(self, path: Path, *, passing: bool = False):
        self.path = path
        self._passing = passing
        self._descriptor: int | None = None
        forks.register(self)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, timeout: float, *, shared: bool = False) -> bool:
        """Waits for the lock, not longer than ``timeout`` seconds. Returns whether it is held now.

        Its holder may be stopped, and then each wait is in vain. So a process waits in vain once for each lock:
        from then on it only looks, until the lock was free.

        Raises:
            OSError: if there are no locks here, or the file cannot be made.
        """
        mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
        wanted = self.path, shared
        timeout = 0.0 if wanted in _in_vain else timeout
        deadline, pause = time.monotonic() + timeout, _SHORTEST_PAUSE
        while not self._try(mode):
            left = deadline - time.monotonic()
            if left <= 0:
                if timeout > 0:
                    _in_vain.add(wanted)
                return False
            # Not a blocking call: nothing but a signal could end it.
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        _in_vain.discard(wanted)
        return True

    def release(self) -> None:
        """Lets the next one in. Does nothing if the lock is not held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        if self._passing:
            remove(self.path)  # while it is held: one that waits finds out that it is not the file there
        os.close(descriptor)

    def _try(self, mode: int) -> bool:
        descriptor = self._open()
        try:
            fcntl.flock(descriptor, mode)
            # Its last holder may have removed the file since it was opened here; the lock is on the file, not the name.
            held = _is_at(descriptor, self.path)
        except BlockingIOError:
            held = False
        except BaseException:
            os.close(descriptor)
            raise
        if held:
            self._descriptor = descriptor
        else:
            os.close(descriptor)
        return held

    def _open(self) -> int:
        try:
            return os.open(self.path, _OPEN, 0o600)
        except OSError:
            if not free(self.path):
                raise
            return os.open(self.path, _OPEN, 0o600)

    def after_fork(self) -> None:
        """Closes the file in a forked child: the lock is the parent's, and would outlive it in the child."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


LOCK_SECONDS = 5.0
"""How long a process that removes entries waits for those that save, and they for it."""

UNANSWERED = "no lock: the process that prunes the store does not continue"
TOO_LONG = "waited too long for another compile"


@contextmanager
def hold(path: Path, timeout: float, *, shared: bool = False) -> Iterator[bool]:
    """Holds a lock, for which it waits not longer than ``timeout`` seconds.

    Args:
        path: of the lock's file.
        timeout: in seconds.
        shared: whether others may hold it as well.

    Yields:
        Whether it is held. Where there are no locks, or none can be written, it is taken for held: no process can hold
        it alone then.
    """
    with FileLock(path) as lock:
        try:
            held = lock.acquire(timeout, shared=shared)
        except OSError:
            held = True
        yield held


@contextmanager
def hold_alone(path: Path) -> Iterator[None]:
    """Holds the lock of a store alone, while nothing is saved: what is half done was left by a process that was killed.

    Raises:
        Refusal: if others save all the time.
        OSError: if there are no locks here.
    """
    with FileLock(path) as lock:
        if not lock.acquire(LOCK_SECONDS):
            raise Refusal("cannot clean up while others save")
        yield
