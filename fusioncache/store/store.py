"""The store: what was compiled, for later processes. Nothing that goes wrong in it reaches a model."""

from __future__ import annotations

import errno
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fusioncache.ir import Key
from fusioncache.ir.strict_json import is_text
from fusioncache.process.settings import REMOTE
from fusioncache.store import catalog
from fusioncache.store.directory import default_path, open_directory
from fusioncache.store.disk import DiskStore
from fusioncache.store.entry import Entry, StoredArtifacts, Summary, make_entry_id
from fusioncache.store.errors import Refusal, StoreError, name_cause
from fusioncache.store.evict import SweepResult
from fusioncache.store.flight import SingleFlight, Turn
from fusioncache.store.index import Event, Index, list_parts
from fusioncache.store.journal import Journal, StoreStats, escape_surrogates, get_host
from fusioncache.store.memory import MemoryStore

if TYPE_CHECKING:
    from fusioncache.store.remote import ReadThrough

MAX_BYTES = 2 << 30
MAX_BYTES_IN_MEMORY = 256 << 20
MAX_AGE = 90 * 86400.0
COMPILE_SECONDS = 300.0
"""How long a process waits for another one that compiles the same."""

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class Store:
    """Artifacts by key and backend, in a directory, or in memory where there is no directory that can be used.

    Safe under threads, under several processes, and under ``fork``. Made by ``Store.open``.
    """

    def __init__(self, disk: DiskStore | None, max_bytes: int, remote: str = ""):
        self._disk = disk
        self._max_bytes = max_bytes
        self._memory = MemoryStore(min(max_bytes, MAX_BYTES_IN_MEMORY))
        self._read_only = disk is not None and not disk.directory.writable
        index = Index(disk.directory.path) if disk and not self._read_only else None
        self._flights = SingleFlight(disk.directory.path / "locks" if disk and not self._read_only else None)
        self._journal = Journal(index, disk.entries if disk else None)
        if disk:
            disk.report = self._journal.count_bypass
        self._read_through = _open_remote(remote, self._journal) if remote else None
        weakref.finalize(self, _finish, self._journal, disk)

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

        A directory that cannot be used costs one warning; the store is in memory then. ``fusioncache.store.check``
        says the same of an existing directory by raising.

        Args:
            path: the directory; by default ``default_path()``.
            max_bytes: the most that all entries and artifacts may have.
            max_age: seconds after which an entry that nobody used is removed.
            remote: URL of what loads ask for what is not here; by default ``FUSIONCACHE_REMOTE``, and "" is none. What
                is there is run here: name one that only those can write whom you trust.

        Raises:
            ValueError: if ``max_bytes`` or ``max_age`` is not positive.
        """
        if max_bytes <= 0 or max_age <= 0:
            raise ValueError(f"max_bytes and max_age must be positive, got {max_bytes} and {max_age}")
        if remote is None:
            remote = REMOTE.read()
        try:
            disk = DiskStore(open_directory(Path(path) if path is not None else default_path()), max_bytes, max_age)
        except Exception as error:  # whatever it is, a store is not worth a model
            store = cls(None, max_bytes, remote)
            store._journal.count_bypass("no directory", f"what is compiled is not stored for later processes. {error}")
            return store
        return cls(disk, max_bytes, remote)

    @property
    def disk(self) -> DiskStore | None:
        """What it has in its directory; None if it is in memory."""
        return self._disk

    @property
    def directory(self) -> Path | None:
        """Where it is; None if it is in memory."""
        return self._disk.directory.path if self._disk else None

    def load(self, key: Key, backend: str) -> StoredArtifacts | None:
        """Returns the artifacts that were saved for this very key; None if none can be trusted. Never raises.

        What is not here is brought from the remote, if there is one.
        """
        start = time.perf_counter()
        found = self._load(key, backend)
        if found is None and self._read_through:
            found = self._fetch(self._read_through, key, backend)
        what = "miss" if found is None else "hit"
        missed = key if found is None else None
        self._journal.count_event(what, f"{key.digest}.{backend}", time.perf_counter() - start, key=missed)
        return found

    def peek(self, key: Key, backend: str, *, asks_remote: bool = False) -> StoredArtifacts | None:
        """Does as ``load``, but is no event: it is nothing when nothing is found. Never raises.

        Args:
            key: as in ``load``.
            backend: as in ``load``.
            asks_remote: whether what is not here is brought from the remote, if there is one.
        """
        found = self._load(key, backend)
        if found is None and asks_remote and self._read_through:
            return self._fetch(self._read_through, key, backend)
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

    @contextmanager
    def take_turn(self, key: Key, backend: str, timeout: float = COMPILE_SECONDS) -> Iterator[Turn]:
        """Waits until no other process of this machine compiles the same: one compile for many.

        Use it after a load that missed, and save before leaving. Raises nothing of its own.

        Args:
            key: what is to be compiled.
            backend: that compiles it.
            timeout: how many seconds to wait for others. After that, everybody compiles alone, or with 0 whoever did
                not want to wait is told that somebody else is at it.
        """
        start = time.perf_counter()
        try:
            id_ = make_entry_id(key, backend)
        except Refusal as refusal:
            # Nobody can save it, so there is nothing to wait for.
            yield Turn(None, refusal.reason, 0.0)
            return
        with self._flights.take_turn(id_, timeout) as alone:
            if alone and timeout:
                self._journal.count_bypass(alone, f"{key.digest[:12]} may be compiled more than once ({alone})")
            found = self._load(key, backend)
            yield Turn(found, alone, time.perf_counter() - start)

    @contextmanager
    def take_turn_together(self, key: Key, backend: str) -> Iterator[None]:
        """Waits until no other process compiles, together with others, what starts with this key. Raises nothing."""
        with self._flights.take_turn(f"{key.digest}.{backend}-together", COMPILE_SECONDS):
            yield

    def discard(self, key: Key, backend: str, reason: str) -> None:
        """Removes an entry that loads and cannot be used. Never raises. The reason is counted and warned of once."""
        self._journal.count_bypass(reason, f"a stored artifact is not used: {reason}", f"{key.digest}.{backend}")
        self._guard("discard", None, lambda: self._discard(make_entry_id(key, backend)))

    def remove(self, key: Key, backend: str) -> None:
        """Removes an entry that makes room for another one. Never raises."""
        self._guard("remove", None, lambda: self._discard(make_entry_id(key, backend)))

    def sweep(self) -> SweepResult | None:
        """Removes what is too old or too much, and what killed processes left; None if that failed. Never raises."""
        return self._guard("clean up", None, lambda: self._disk.sweep() if self._disk else None)

    def entries(self) -> tuple[Summary, ...]:
        """Returns all entries in the directory, newest first. Never raises."""
        return self._guard("list", (), lambda: catalog.list_entries(self._disk, self._journal) if self._disk else ())

    def entry(self, digest: str, backend: str) -> Entry | None:
        """Returns one entry with all that is known of it. Never raises."""
        return self._guard(
            "read", None, lambda: catalog.read_entry(self._disk, f"{digest}.{backend}") if self._disk else None
        )

    def events(self, limit: int = 1000) -> tuple[Event, ...]:
        """Returns the newest events of all processes, newest first. Never raises."""
        return catalog.list_events(self._journal, limit)

    def nearest(self, key: Key, backend: str) -> str:
        """Returns the digest of the key that is nearest to this one, of those stored for the same graph and backend.

        It is the one that shares most ingredients; of several, the newest. It is empty if there is none, or no index to
        ask. Never raises.
        """
        return catalog.find_nearest(self._journal, key, backend)

    def texts(self) -> Mapping[str, str]:
        """Returns the whole text of the key of each entry in the directory, by its digest. Never raises."""
        return self._guard("read", {}, lambda: catalog.read_texts(self._disk, self._journal) if self._disk else {})

    def contents(self, name: str) -> Mapping[str, bytes]:
        """Returns each entry's artifact with this name, if it has one, by the entry's id. Never raises."""
        return self._guard(
            "read", {}, lambda: catalog.read_contents(self._disk, self._journal, name) if self._disk else {}
        )

    def stats(self) -> StoreStats:
        """Returns what this process did."""
        return self._journal.stats()

    def close(self) -> None:
        """Writes what happened into the index and gives free what was in use. The store still works afterwards."""
        _finish(self._journal, self._disk)

    def _load(self, key: Key, backend: str) -> StoredArtifacts | None:
        def load() -> StoredArtifacts | None:
            id_, disk = make_entry_id(key, backend), self._disk
            return disk.load(key, id_) if disk else self._memory.load(key, id_)

        return self._guard("load", None, load)

    def _fetch(self, read_through: ReadThrough, key: Key, backend: str) -> StoredArtifacts | None:
        start = time.perf_counter()
        try:
            id_ = make_entry_id(key, backend)
        except Refusal:
            return None  # looking for it here has said so
        found = read_through.find(key, id_, self._disk, self._max_bytes)
        if found is None:
            return None
        entry, contents = found
        self._guard("save", False, lambda: self._put("pull", key, entry, contents, start))
        return StoredArtifacts(contents, entry.seconds)

    def _save(self, key: Key, backend: str, artifacts: Mapping[str, bytes], name: str, seconds: float) -> bool:
        start = time.perf_counter()
        make_entry_id(key, backend)
        if not all(map(is_text, artifacts)):
            raise Refusal("an artifact whose name is no valid Unicode")
        parts = list_parts(key)
        origin = (escape_surrogates(name), time.time(), float(seconds), os.getpid(), get_host())
        return self._put("save", key, Entry(key.digest, backend, key.text, parts, (), *origin), artifacts, start)

    def _put(self, what: str, key: Key, entry: Entry, artifacts: Mapping[str, bytes], start: float) -> bool:
        disk = self._disk
        if disk is None:
            return self._memory.save(key, entry.id, artifacts, entry.seconds)
        if self._read_only:
            raise Refusal("the store is read-only")
        saved = disk.save(entry, artifacts)
        if saved is not None:
            self._journal.count_event(what, saved.id, time.perf_counter() - start, entry=saved)
        return saved is not None

    def _discard(self, id_: str) -> None:
        self._disk.remove(id_) if self._disk else self._memory.remove(id_)

    def _guard[T](self, what: str, otherwise: T, do: Callable[[], T]) -> T:
        try:
            return do()
        except Refusal as refusal:
            self._journal.count_bypass(refusal.reason, f"cannot {what} what was compiled: {refusal}")
        except StoreError as error:
            self._disk, self._flights = None, SingleFlight(None)
            self._journal.end()
            self._journal.count_bypass("the directory is gone", f"what is compiled is no longer stored. {error}")
        except Exception as error:  # whatever it is, a store is not worth a model
            self._read_only |= what == "save" and isinstance(error, OSError) and error.errno in _READ_ONLY
            self._journal.count_bypass(
                f"{what} failed: {name_cause(error)}", f"cannot {what} what was compiled: {error}"
            )
        return otherwise


def _open_remote(url: str, journal: Journal) -> ReadThrough:
    from fusioncache.store.remote import ReadThrough  # most stores have none

    return ReadThrough(url, journal)


def _finish(journal: Journal, disk: DiskStore | None) -> None:
    journal.flush()
    if disk:
        disk.close()
