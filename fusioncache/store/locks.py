"""Locks between processes. When a process dies for any reason, the kernel releases its locks."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fusioncache.process import forks
from fusioncache.process.files import free, remove
from fusioncache.store.files import Refusal

_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
_timed_out: set[tuple[Path, bool]] = set()
"""The locks for which this process timed out, each with whether it was requested as shared."""


class FileLock:
    """A lock on a file, between processes and between threads. As a context manager it releases the lock at exit.

    Why not the library ``filelock``: its file locks cannot be shared (its shared locks are sqlite databases), and it
    leaves each lock's file behind, here one for each compiled key. Without kernel locks it treats an existing file as a
    held lock, which a killed process never releases. Both classes handle forked children.

    Args:
        path: of the file.
        removes_file: whether the file is removed when the lock is released.
    """

    def __init__(self, path: Path, *, removes_file: bool = False):
        self.path = path
        self._passing = removes_file
        self._descriptor: int | None = None
        forks.register(self)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, timeout: float, *, shared: bool = False) -> bool:
        """Waits for the lock for at most ``timeout`` seconds. Returns True if it is held now.

        The holder may be stopped, so that each wait would time out. So a process times out once for each lock: from
        then on it tries without waiting, until it got the lock.

        Raises:
            OSError: if locks are not supported here, or the file cannot be made.
        """
        mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
        wanted = self.path, shared
        timeout = 0.0 if wanted in _timed_out else timeout
        deadline, pause = time.monotonic() + timeout, _SHORTEST_PAUSE
        while not self._try(mode):
            left = deadline - time.monotonic()
            if left <= 0:
                if timeout > 0:
                    _timed_out.add(wanted)
                return False
            # Not a blocking call, which only a signal could end.
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        _timed_out.discard(wanted)
        return True

    def release(self) -> None:
        """Releases the lock. Does nothing if it is not held."""
        if self._passing and self._descriptor is not None:
            remove(self.path)  # while it is held: a waiting process then detects that its file was removed
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _try(self, mode: int) -> bool:
        descriptor, held = self._open(), False
        try:
            with suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(descriptor, mode)
                # The last holder may have removed the file since it was opened here: a lock is on an inode, not a name.
                held = os.path.samestat(os.fstat(descriptor), os.lstat(self.path))
        finally:
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
        """Closes the file in a forked child. The lock is the parent's, and would outlive its release in the child."""
        self._close()


LOCK_SECONDS = 5.0
"""How long a process that removes entries waits for processes that save, and vice versa."""

UNANSWERED = "no lock: the process that prunes the store does not continue"
TOO_LONG = "waited too long for another compile"


@contextmanager
def hold(path: Path, timeout: float, *, shared: bool = False) -> Iterator[bool]:
    """Holds a lock in the body, after waiting at most ``timeout`` seconds for it.

    Args:
        path: of the lock's file.
        timeout: in seconds.
        shared: whether other processes may hold it as well.

    Yields:
        Whether it is held. True as well if locks are not supported or the file cannot be written, because then no
        process can hold it exclusively.
    """
    with FileLock(path) as lock:
        try:
            held = lock.acquire(timeout, shared=shared)
        except OSError:
            held = True
        yield held


@contextmanager
def hold_exclusively(path: Path) -> Iterator[None]:
    """Holds a store's lock exclusively. Nothing is saved meanwhile, so unfinished files are those of killed processes.

    Raises:
        Refusal: if other processes save all the time.
        OSError: if locks are not supported here.
    """
    with FileLock(path) as lock:
        if not lock.acquire(LOCK_SECONDS):
            raise Refusal("cannot clean up while others save")
        yield
