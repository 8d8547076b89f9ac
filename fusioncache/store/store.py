"""The store: executables for later processes. No failure of it reaches a model.

- On a full disk a save is refused, counted, and warned of once. It leaves no partial file. Later saves try again.
- A directory that cannot be written is read-only: entries are loaded, and all saves are refused.
- Without a usable directory, or once it was removed or replaced, the process continues without a store.
- A damaged entry is a miss, and the next save of its key replaces it.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fusioncache.ir import Key
from fusioncache.ir.codec import is_text
from fusioncache.ir.keys import graph_digest
from fusioncache.process.settings import REMOTE, TRUST
from fusioncache.process.warning import logger
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
"""How long a process waits for another one that writes the same. A write takes milliseconds."""

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Turn:
    """A process's turn to compile something.

    Attributes:
        artifacts: those that another process saved while this one waited; None if this process shall compile.
        lock_problem: why other processes may be compiling the same now; None if they wait for this one.
    """

    artifacts: StoredArtifacts | None
    lock_problem: str | None


class Store:
    """Artifacts by key and backend in a directory. Without a usable directory nothing is stored.

    Safe for threads, for several processes, and for ``fork``. Made by ``Store.open``.

    Attributes:
        disk: the contents of the directory; None if it cannot be used, or cannot be used any more.
    """

    def __init__(self, disk: DiskStore | None, remote: str):
        self.disk = disk
        self._read_only = disk is not None and not disk.directory.writable
        self._counts = StoreCounts()
        if disk:
            disk.report = self._counts.count_bypass
        self._read_through: ReadThrough | None = None
        if remote:
            from fusioncache.store.read_through import ReadThrough  # most stores have none

            TRUST.get_text()  # raises now if the variable is invalid
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
        """Returns the store in a directory, which is made if it does not exist.

        If the directory cannot be used, this warns once, and nothing is stored. ``fusioncache.store.check`` raises
        instead, for an existing directory.

        Args:
            path: the directory; by default ``default_path()``.
            max_bytes: the maximum size of all entries and artifacts.
            max_age: seconds after which an unused entry is removed.
            remote: URL of the remote from which loads fetch missing entries; by default ``FUSIONCACHE_REMOTE``, and ""
                is none. Only entries that a trusted key signed are fetched (``signing.py``).

        Raises:
            ValueError: if ``max_bytes`` or ``max_age`` is not positive.
        """
        if max_bytes <= 0 or max_age <= 0:
            raise ValueError(f"max_bytes and max_age must be positive, got {max_bytes} and {max_age}")
        if remote is None:
            remote = REMOTE.get_text()
        try:
            disk = DiskStore(open_directory(Path(path) if path is not None else default_path()), max_bytes, max_age)
        except Exception as error:  # no error of a store may stop a model
            store = cls(None, remote)
            store._counts.count_bypass("no directory", f"what is compiled is not stored for later processes. {error}")
            return store
        return cls(disk, remote)

    def watch(self, observer: Observer) -> None:
        """Sets the observer that receives counts of what comes from other machines."""
        self._counts.observer = observer

    @property
    def bypasses(self) -> Mapping[str, int]:
        """The number of failures and refusals in this process, by reason."""
        return self._counts.bypasses

    @property
    def directory(self) -> Path | None:
        """The path of the directory; None if nothing is stored."""
        return self.disk.directory.path if self.disk else None

    def load(self, key: Key, backend: str, *, asks_remote: bool = True) -> StoredArtifacts | None:
        """Returns the artifacts that were saved for exactly this key; None if there are no trusted ones. Never raises.

        Args:
            key: of the artifacts.
            backend: as in ``save``.
            asks_remote: whether a missing entry is fetched from the remote, if there is one.
        """
        found = self._load(key, backend)
        if found is None and asks_remote and self._read_through:
            found = self._load(key, backend) if self._read_through.fetch_entry(f"{key.digest}.{backend}") else None
        if found is not None and found.is_foreign:
            self._counts.observer("pulled_seconds", found.seconds)
        return found

    def read[T](
        self, key: Key, slot: str, decode: Callable[[StoredArtifacts], T], what: str, *, asks_remote: bool = False
    ) -> T | None:
        """Returns the decoded content of a slot; None if it is free or does not decode. Then the entry is removed.

        Args:
            key: of the entry.
            slot: of the entry.
            decode: decodes the artifacts. Raises ``ValueError`` or ``KeyError`` if it cannot.
            what: describes an entry that does not decode, to be counted.
            asks_remote: as in ``load``.
        """
        slots = self.read_slots(key, (slot,), decode, what, asks_remote=asks_remote)
        return next((found for _, found in slots), None)

    def read_slots[T](
        self, key: Key, slots: Iterable[str], decode: Callable[[StoredArtifacts], T], what: str, *, asks_remote: bool
    ) -> Iterator[tuple[str, T]]:
        """Yields the slots with content, each with its decoded content: see ``read``. Loads one when it is requested.

        Args:
            key: of the entries.
            slots: of the entries, in the order in which they are filled.
            decode: as in ``read``.
            what: as in ``read``.
            asks_remote: whether to ask the remote for a free slot, up to the first that is free there, too.
        """
        for slot in slots:
            artifacts = self.load(key, slot, asks_remote=asks_remote)
            asks_remote = asks_remote and artifacts is not None
            try:
                found = decode(artifacts) if artifacts is not None else None
            except (ValueError, KeyError) as error:
                logger.info("%s, for %s", what, key.digest[:12], exc_info=error)
                self.discard(key, slot, f"{what}: {type(error).__name__}")
                continue
            if found is not None:
                yield slot, found

    def save(
        self, key: Key, backend: str, artifacts: Mapping[str, bytes], *, name: str = "", seconds: float = 0.0
    ) -> bool:
        """Stores artifacts, unless an intact entry for this key exists. Never raises.

        Args:
            key: of the artifacts.
            backend: that made them: a plain word in lower case.
            artifacts: by the backend's names for them.
            name: of the template, for people.
            seconds: that it took to compile.

        Returns:
            Whether later loads return these artifacts.
        """
        return self._guard("save", False, lambda: self._save(key, backend, artifacts, name, seconds))

    def replace(self, key: Key, backend: str, artifacts: Mapping[str, bytes], *, name: str = "") -> bool:
        """Replaces the artifacts of a key by artifacts that extend them. Never raises.

        An entry from another machine stays as it is: otherwise its content would live on without its signature, even
        after its key was revoked.

        Args:
            key: of the artifacts.
            backend: as in ``save``.
            artifacts: by the backend's names for them.
            name: for people.

        Returns:
            Whether later loads return these artifacts.
        """
        found = self._load(key, backend)
        if found is not None and found.is_foreign:
            return False
        self.remove(key, backend)
        return self.save(key, backend, artifacts, name=name)

    @contextmanager
    def take_turn(self, key: Key, backend: str, timeout: float = COMPILE_SECONDS) -> Iterator[Turn]:
        """Waits until no other process of this machine compiles the same, so that one compile serves many processes.

        Use it after a load that missed, and save in the body. Raises nothing of its own.

        Args:
            key: of the executable.
            backend: that compiles it.
            timeout: how many seconds to wait for others. After that each compiles alone. With 0 it does not wait, and
                only reports whether another process compiles the same.
        """
        try:
            id_ = make_entry_id(key, backend)
        except Refusal as refusal:
            # It cannot be saved, so there is nothing to wait for.
            yield Turn(None, refusal.reason)
            return
        with self._take_turn(id_, timeout) as problem:
            if problem and timeout:
                self._counts.count_bypass(problem, f"{key.digest[:12]} may be compiled more than once ({problem})")
            yield Turn(self._load(key, backend), problem)

    @contextmanager
    def take_turn_together(self, key: Key, backend: str) -> Iterator[None]:
        """Waits until no other process compiles the batch that starts with this key. Raises nothing of its own."""
        with self._take_turn(f"{key.digest}.{backend}-together", COMPILE_SECONDS):
            yield

    @contextmanager
    def _take_turn(self, name: str, timeout: float) -> Iterator[str | None]:
        """Yields why other processes may be compiling the same now; None if they wait."""
        if self.disk is None or self._read_only:
            yield None  # other processes could not load the executable
            return
        with FileLock(self.disk.directory.path / "locks" / name, removes_file=True) as lock:
            try:
                lock_problem = None if lock.acquire(timeout) else TOO_LONG
            except OSError as error:
                lock_problem = f"no lock: {name_cause(error)}"
            yield lock_problem

    def discard(self, key: Key, backend: str, reason: str) -> None:
        """Removes an entry that loads but cannot be used. Counts the reason, and warns of it once. Never raises."""
        self._counts.count_bypass(reason, f"a stored artifact is not used: {reason}")
        self.remove(key, backend)

    def remove(self, key: Key, backend: str) -> None:
        """Removes an entry. Never raises."""

        def remove() -> None:
            id_ = make_entry_id(key, backend)
            if self.disk and not self._read_only:
                self.disk.remove(id_)

        self._guard("remove", None, remove)

    def sweep(self) -> SweepResult | None:
        """Removes entries beyond the age or size limit, and files of killed processes. Never raises.

        Returns None if that failed.
        """
        return self._guard("clean up", None, lambda: self.disk.sweep() if self.disk else None)

    def entries(self) -> tuple[Entry, ...]:
        """Returns all readable entries in the directory, newest first. Never raises."""
        disk = self.disk
        found: list[Entry] = self._guard("list", [], lambda: list(disk.list_entries() if disk else []))
        return tuple(sorted(found, key=lambda entry: (-entry.created, entry.digest, entry.backend)))

    def entry(self, digest: str, backend: str) -> Entry | None:
        """Returns one entry; None if it does not exist or cannot be read. Never raises."""
        with suppress(Refusal, OSError):
            return self.disk.entries.get(f"{digest}.{backend}") if self.disk else None
        return None

    def choose_slot(self, key: Key, slots: Iterable[str], used: Container[str]) -> str:
        """Returns the first slot that is not in use, or else the slot with the oldest entry."""
        found = {slot: self.entry(key.digest, slot) if slot in used else None for slot in slots}
        return min(found, key=lambda slot: entry.created if (entry := found[slot]) else 0.0)

    def find_nearest(self, key: Key, backend: str) -> Entry | None:
        """Returns the stored entry with the nearest key, among those of the same graph and backend.

        The nearest key differs in the fewest ingredients; of several, the newest. None if there is no other.
        Never raises. Reads all entries.
        """
        own = tuple((part.name, part.digest) for part in key.ingredients)
        graph = graph_digest(own)
        others = [entry for entry in self.entries() if entry.backend == backend and entry.digest != key.digest]
        alike = [entry for entry in others if graph and graph_digest(entry.ingredients) == graph]
        return min(alike, key=lambda entry: len({*own} ^ {*entry.ingredients}), default=None)

    def _load(self, key: Key, backend: str) -> StoredArtifacts | None:
        def load() -> StoredArtifacts | None:
            id_ = make_entry_id(key, backend)
            return self.disk.load(key, id_) if self.disk else None

        return self._guard("load", None, load)

    def _save(self, key: Key, backend: str, artifacts: Mapping[str, bytes], name: str, seconds: float) -> bool:
        make_entry_id(key, backend)
        if not all(map(is_text, artifacts)):
            raise Refusal("an artifact whose name is no valid Unicode")
        parts = tuple((part.name, part.digest) for part in key.ingredients)
        origin = (_escape_surrogates(name), time.time(), float(seconds), os.getpid(), get_host())
        if self.disk is None:
            return False
        if self._read_only:
            raise Refusal("the store is read-only")
        saved = self.disk.save(Entry(key.digest, backend, key.text, parts, (), *origin), artifacts)
        return saved is not None

    def _guard[T](self, what: str, otherwise: T, do: Callable[[], T]) -> T:
        try:
            return do()
        except Refusal as refusal:
            self._counts.count_bypass(refusal.reason, f"cannot {what} what was compiled: {refusal}")
        except StoreError as error:
            self.disk = None
            self._counts.count_bypass("the directory is gone", f"what is compiled is no longer stored. {error}")
        except Exception as error:  # no error of a store may stop a model
            self._read_only |= what == "save" and isinstance(error, OSError) and error.errno in _READ_ONLY
            self._counts.count_bypass(
                f"{what} failed: {name_cause(error)}", f"cannot {what} what was compiled: {error}"
            )
        return otherwise


def get_host() -> str:
    """Returns the name of this machine."""
    return _escape_surrogates(os.uname().nodename)


def _escape_surrogates(text: str) -> str:
    """Escapes lone surrogates in a text, because they cannot be encoded in a file."""
    return text.encode(errors="backslashreplace").decode()
