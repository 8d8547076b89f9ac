"""Which entries running processes use, so that nobody removes them under their feet."""

from __future__ import annotations

import os
import stat
import time
import uuid
from contextlib import suppress
from pathlib import Path

from fusioncache.process import forks
from fusioncache.process.places import ASIDE, remove
from fusioncache.store.errors import Refusal
from fusioncache.store.files import read_private
from fusioncache.store.locks import FileLock

_LONGEST_LIST = 1 << 26
_TRUST_SECONDS = 86400.0
"""How long a list of another machine counts although nobody seems to lock it: some network file systems keep the locks
of each machine to itself."""


class Lease:
    """What this process uses: a file with one id a line, locked for as long as the process lives.

    Args:
        folder: where all processes keep theirs.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._ids: set[str] = set()
        self._lock = forks.lock()
        self._file: FileLock | None = None
        forks.register(self)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._ids

    def add(self, id_: str) -> None:
        """Adds an entry. The caller keeps ``find_leased`` from running meanwhile.

        Raises:
            OSError: if it cannot be written.
        """
        with self._lock:
            if id_ in self._ids:
                return
            if self._file is None:
                name = f"{_host()}~{os.getpid()}~{uuid.uuid4().hex[:8]}"
                file = FileLock(self._folder / name, passing=True)
                file.acquire(0.0)
                self._file = file
            self._file.write(f"{id_}\n".encode())
            self._ids.add(id_)

    def end(self) -> None:
        """Gives all entries free."""
        with self._lock:
            if self._file:
                self._file.release()
            self._forget()

    def after_fork(self) -> None:
        """Has a forked child list what it loads from now on in a file of its own."""
        self._forget()

    def _forget(self) -> None:
        self._file = None
        self._ids = set()


def find_leased(folder: Path) -> set[str]:
    """Returns the ids that any running process uses. Removes the lists of processes that ended.

    What is no list, or cannot be read, names nothing: an entry that is removed while it is used is a miss at the worst.

    Raises:
        OSError: if the folder cannot be read.
    """
    used: set[str] = set()
    for name in os.listdir(folder):
        path = folder / name
        with suppress(Refusal, OSError):
            if name.startswith(ASIDE) or not stat.S_ISREG(os.lstat(path).st_mode):
                continue
            if _is_over(path):
                remove(path)
            else:
                content = read_private(path, _LONGEST_LIST) or b""
                used.update(content.decode(errors="replace").split())
    return used


def _is_over(path: Path) -> bool:
    lock = FileLock(path)
    if not lock.acquire(0.0):
        return False
    lock.release()
    host = path.name.partition("~")[0]
    # The distance in time, because a clock may have been set back since.
    return host == _host() or abs(time.time() - path.stat().st_mtime) > _TRUST_SECONDS


def _host() -> str:
    # Only to tell machines apart; a name with a slash would not do as one of a file.
    return os.uname().nodename.replace("/", "_").replace("~", "_")[:100] if hasattr(os, "uname") else "here"
