"""Keeps those who save and those who remove apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fusioncache.store.errors import Refusal
from fusioncache.store.locks import FileLock

LOCK_SECONDS = 5.0
"""How long who removes waits for those who save, and they for the one who removes."""


class SweepLock:
    """A lock that savers and new users share, and that who removes has alone.

    So nothing that is being saved or was just found is removed, and whatever is half done while somebody is alone was
    left by a process that was killed.
    """

    def __init__(self, path: Path):
        self._path = path

    @contextmanager
    def shared(self) -> Iterator[None]:
        """While nobody removes anything.

        Raises:
            Refusal: if somebody does, for too long.
        """
        lock = FileLock(self._path)
        try:
            held = lock.acquire(LOCK_SECONDS, shared=True)
        except OSError:
            # No locks here, or nothing to write: then nobody else can be alone either.
            held = True
        if not held:
            raise Refusal("waited too long for one that cleans up")
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While nobody saves or begins to use an entry.

        Raises:
            Refusal: if somebody does all the time.
            OSError: if there are no locks here.
        """
        lock = FileLock(self._path)
        if not lock.acquire(LOCK_SECONDS):
            raise Refusal("cannot clean up while others save")
        try:
            yield
        finally:
            lock.release()
