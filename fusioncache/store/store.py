"""The store: what was compiled, for later processes. Nothing that goes wrong in it reaches a model.

- On a full disk a save is refused, counted, and warned of once. It leaves no part of a file. Later saves try again.
- From a directory that cannot be written, entries are loaded; all saves are refused.
- Without a directory that can be used, or once it was removed or replaced, the process goes on without a store.
- A damaged entry is a miss, and the next save of its key replaces it.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fusioncache.ir import Key
from fusioncache.ir.keys import graph_digest
from fusioncache.ir.strict_json import is_text
from fusioncache.process.settings import REMOTE, TRUST
from fusioncache.store.counts import Observer, StoreCounts
from fusioncache.store.directory import default_path, open_directory
from fusioncache.store.disk import DiskStore, SweepResult
from fusioncache.store.entry import Entry, StoredArtifacts, make_entry_id
from fusioncache.store.files import Refusal, StoreError, name_cause
from fusioncache.store.locks import TOO_LONG, FileLock

if TYPE_CHECKING:
    from fusioncache.store.read_through import ReadThrough

MAX_BYTES = 2 << 30
MAX_AGE = 90 * 86400.0
COMPILE_SECONDS = 300.0
"""How long a process waits for another one that compiles the same."""
WRITE_SECONDS = 10.0
"""How long a process waits for another one that writes the same, which takes milliseconds."""

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Turn:
    """A process's turn to compile something.

    Attributes:
        artifacts: what another process saved while this one waited for its turn; None if it is to compile.
        alone: why others may be compiling the same at this moment; None if they wait for this one.
    """

    artifacts: StoredArtifacts | None
    alone: str | None


class Store:
    """Artifacts by key and backend, in a directory. Where there is none that can be used, nothing is stored.

    Safe under threads, under several processes, and under ``fork``. Made by ``Store.open``.
    """

    def __init__(self, disk: DiskStore | None, remote: str):
        self._disk = disk
        self._read_only = disk is not None and not disk.directory.writable
        self._counts = StoreCounts()
        if disk:
            disk.report = self._counts.count_bypass
        self._read_through: ReadThrough | None = None
        if remote:
            from fusioncache.store.read_through import ReadThrough  # most stores have none

            TRUST.get_text()  # what is wrong with it is better said now
            if self._read_only:
                message = f"the remote is not used: what comes from it could not be put into {self.directory}"
                self._counts.count_refused_pull("the store is read-only", message)
            elif disk is not None:
                self._read_through = ReadThrough(remote, disk, self._counts)

    @classmethod
    def open(
        cls,
        path: str | Path | None = None,
        *,
        max_bytes: int = MAX_BYTES,
        max_age: float = MAX_AGE,
        remote: str | None = None,
    ) -> Store:
        """Opens a directory, which is made if it is not there.

        A directory that cannot be used costs one warning; nothing is stored then. ``fusioncache.store.check``
        says the same of an existing directory by raising.

        Args:
            path: the directory; by default ``default_path()``.
            max_bytes: the most that all entries and artifacts may have.
            max_age: seconds after which an unused entry is removed.
            remote: URL of a remote that loads ask for what is not here; by default ``FUSIONCACHE_REMOTE``, and "" is
                none. What a trusted key signed comes from there (``signing.py``).

        Raises:
            ValueError: if ``max_bytes`` or ``max_age`` is not positive.
        """
        if max_bytes <= 0 or max_age <= 0:
            raise ValueError(f"max_bytes and max_age must be positive, got {max_bytes} and {max_age}")
        if remote is None:
            remote = REMOTE.get_text()
        try:
            disk = DiskStore(open_directory(Path(path) if path is not None else default_path()), max_bytes, max_age)
        except Exception as error:  # whatever it is, a store is not worth a model
            store = cls(None, remote)
            store._counts.count_bypass("no directory", f"what is compiled is not stored for later processes. {error}")
            return store
        return cls(disk, remote)

    def watch(self, observer: Observer) -> None:
        """Has an observer told, from now on, what comes from other machines."""
        self._counts.observer = observer

    @property
    def bypasses(self) -> Mapping[str, int]:
        """How often it was not used as it should have been in this process, by reason."""
        return self._counts.bypasses

    @property
    def disk(self) -> DiskStore | None:
        """What it has in its directory; None if there is none."""
        return self._disk

    @property
    def directory(self) -> Path | None:
        """Where it is; None if nothing is stored."""
        return self._disk.directory.path if self._disk else None

    def load(self, key: Key, backend: str) -> StoredArtifacts | None:
        """Returns the artifacts that were saved for this very key; None if none can be trusted. Never raises.

        What is not here is brought from the remote, if there is one.
        """
        found = self.peek(key, backend, asks_remote=True)
        if found is not None and found.came:
            self._counts.observer("pulled_seconds", found.seconds)
        return found

    def peek(self, key: Key, backend: str, *, asks_remote: bool = False) -> StoredArtifacts | None:
        """Does as ``load``, but tells no observer what a load saved. Never raises.

        Args:
            key: as in ``load``.
            backend: as in ``load``.
            asks_remote: whether what is not here is brought from the remote, if there is one.
        """
        found = self._load(key, backend)
        if found is None and asks_remote and self._read_through:
            return self._load(key, backend) if self._read_through.bring(f"{key.digest}.{backend}") else None
        return found

    def save(
        self, key: Key, backend: str, artifacts: Mapping[str, bytes], *, name: str = "", seconds: float = 0.0
    ) -> bool:
        """Keeps artifacts, unless there are some for this key that are whole. Never raises.

        Args:
            key: that they were made for.
            backend: that made them: a plain word in lower case.
            artifacts: by the backend's names for them.
            name: of the template, for people.
            seconds: that it took to compile.

        Returns:
            Whether these artifacts are what later loads get.
        """
        return self._guard("save", False, lambda: self._save(key, backend, artifacts, name, seconds))

    def replace(self, key: Key, backend: str, artifacts: Mapping[str, bytes], *, name: str = "") -> bool:
        """Keeps artifacts that were made from those of this key and more, in their place. Never raises.

        What came from another machine stays as it is: what it says would go on without its signature, after its key
        was revoked, too.

        Args:
            key: that they were made for.
            backend: as in ``save``.
            artifacts: by the backend's names for them.
            name: for people.

        Returns:
            Whether these artifacts are what later loads get.
        """
        found = self._load(key, backend)
        if found is not None and found.came:
            return False
        self.remove(key, backend)
        return self.save(key, backend, artifacts, name=name)

    @contextmanager
    def take_turn(self, key: Key, backend: str, timeout: float = COMPILE_SECONDS) -> Iterator[Turn]:
        """Waits until no other process of this machine compiles the same: one compile for many.

        Use it after a load that missed, and save before leaving. Raises nothing of its own.

        Args:
            key: what is to be compiled.
            backend: that compiles it.
            timeout: how many seconds to wait for others. After that each compiles alone. With 0 it is only said that
                another one is at it.
        """
        try:
            id_ = make_entry_id(key, backend)
        except Refusal as refusal:
            # It cannot be saved, so there is nothing to wait for.
            yield Turn(None, refusal.reason)
            return
        with self._take_turn(id_, timeout) as alone:
            if alone and timeout:
                self._counts.count_bypass(alone, f"{key.digest[:12]} may be compiled more than once ({alone})")
            yield Turn(self._load(key, backend), alone)

    @contextmanager
    def take_turn_together(self, key: Key, backend: str) -> Iterator[None]:
        """Waits until no other process compiles, together with others, what starts with this key. Raises nothing."""
        with self._take_turn(f"{key.digest}.{backend}-together", COMPILE_SECONDS):
            yield

    @contextmanager
    def _take_turn(self, name: str, timeout: float) -> Iterator[str | None]:
        """Yields why others may be making the same thing at this moment; None if they wait."""
        if self._disk is None or self._read_only:
            yield None  # what this process compiles is of no use to others
            return
        with FileLock(self._disk.directory.path / "locks" / name, passing=True) as lock:
            try:
                alone = None if lock.acquire(timeout) else TOO_LONG
            except OSError as error:
                alone = f"no lock: {name_cause(error)}"
            yield alone

    def discard(self, key: Key, backend: str, reason: str) -> None:
        """Removes an entry that loads and cannot be used. Never raises. The reason is counted and warned of once."""
        self._counts.count_bypass(reason, f"a stored artifact is not used: {reason}")
        self.remove(key, backend)

    def remove(self, key: Key, backend: str) -> None:
        """Removes an entry. Never raises."""

        def remove() -> None:
            id_ = make_entry_id(key, backend)
            if self._disk and not self._read_only:
                self._disk.remove(id_)

        self._guard("remove", None, remove)

    def sweep(self) -> SweepResult | None:
        """Removes what is too old or too much, and what killed processes left; None if that failed. Never raises."""
        return self._guard("clean up", None, lambda: self._disk.sweep() if self._disk else None)

    def entries(self) -> tuple[Entry, ...]:
        """Returns all entries in the directory that can be read, newest first. Never raises."""
        disk = self._disk
        found: list[Entry] = self._guard("list", [], lambda: list(disk.list_entries() if disk else []))
        return tuple(sorted(found, key=lambda entry: (-entry.created, entry.digest, entry.backend)))

    def entry(self, digest: str, backend: str) -> Entry | None:
        """Returns one entry with all that is known of it; None if there is none that can be read. Never raises."""
        with suppress(Refusal, OSError):
            return self._disk.entries.get(f"{digest}.{backend}") if self._disk else None
        return None

    def find_oldest(self, key: Key, slots: Iterable[str]) -> str:
        """Returns the slot of which the entry was made first, or that has none."""
        found = {slot: self.entry(key.digest, slot) for slot in slots}
        return min(found, key=lambda slot: entry.created if (entry := found[slot]) else 0.0)

    def find_nearest(self, key: Key, backend: str) -> Entry | None:
        """Returns the entry with the key that is nearest to this one, of those stored for the same graph and backend.

        It is the one that shares most ingredients; of several, the newest. None if there is none. Never raises. All
        entries are read for it.
        """
        own = tuple((part.name, part.digest) for part in key.ingredients)
        graph = graph_digest(own)
        others = [entry for entry in self.entries() if entry.backend == backend and entry.digest != key.digest]
        alike = [entry for entry in others if graph and graph_digest(entry.ingredients) == graph]
        return min(alike, key=lambda entry: len({*own} ^ {*entry.ingredients}), default=None)

    def _load(self, key: Key, backend: str) -> StoredArtifacts | None:
        def load() -> StoredArtifacts | None:
            id_ = make_entry_id(key, backend)
            return self._disk.load(key, id_) if self._disk else None

        return self._guard("load", None, load)

    def _save(self, key: Key, backend: str, artifacts: Mapping[str, bytes], name: str, seconds: float) -> bool:
        make_entry_id(key, backend)
        if not all(map(is_text, artifacts)):
            raise Refusal("an artifact whose name is no valid Unicode")
        parts = tuple((part.name, part.digest) for part in key.ingredients)
        origin = (_escape_surrogates(name), time.time(), float(seconds), os.getpid(), get_host())
        if self._disk is None:
            return False
        if self._read_only:
            raise Refusal("the store is read-only")
        saved = self._disk.save(Entry(key.digest, backend, key.text, parts, (), *origin), artifacts)
        return saved is not None

    def _guard[T](self, what: str, otherwise: T, do: Callable[[], T]) -> T:
        try:
            return do()
        except Refusal as refusal:
            self._counts.count_bypass(refusal.reason, f"cannot {what} what was compiled: {refusal}")
        except StoreError as error:
            self._disk = None
            self._counts.count_bypass("the directory is gone", f"what is compiled is no longer stored. {error}")
        except Exception as error:  # whatever it is, a store is not worth a model
            self._read_only |= what == "save" and isinstance(error, OSError) and error.errno in _READ_ONLY
            self._counts.count_bypass(
                f"{what} failed: {name_cause(error)}", f"cannot {what} what was compiled: {error}"
            )
        return otherwise


def get_host() -> str:
    """Returns the name of this machine."""
    return _escape_surrogates(os.uname().nodename)


def _escape_surrogates(text: str) -> str:
    """Writes out what is no valid Unicode in a text: no file takes it."""
    return text.encode(errors="backslashreplace").decode()
