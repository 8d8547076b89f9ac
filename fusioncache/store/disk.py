"""Entries and objects in a store's directory: load, save, sweep (limits of age and size) and audit (damage)."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fusioncache.ir import Key
from fusioncache.process import forks
from fusioncache.process.files import ASIDE, remove
from fusioncache.store import locks
from fusioncache.store.directory import Directory, EntryFile, EntryFolder, ObjectFolder
from fusioncache.store.entry import OTHER_FORMAT, Artifact, Entry, StoredArtifacts
from fusioncache.store.files import TEMPORARY, Refusal, name_cause
from fusioncache.store.locks import UNANSWERED, FileLock, hold_exclusively
from fusioncache.store.signing import Trust, read_trust

FILL = 0.9
"""The part of the size limit that a sweep leaves, so that the next save need not sweep again."""

_SKEW_SECONDS = 3600.0
_LITTER_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of a sweep.

    Attributes:
        entries: the number of removed entries.
        objects: the number of removed objects.
        litter: the number of removed files of killed processes.
        bytes_left: of all entries and objects that stayed.
    """

    entries: int
    objects: int
    litter: int
    bytes_left: int


@dataclass(frozen=True, slots=True)
class _EntryState:
    """An entry's file, its objects (None if another version wrote it), and whether it can be removed in any case."""

    file: EntryFile
    objects: frozenset[str] | None
    useless: bool = False


def _inspect(entries: EntryFolder, id_: str, file: EntryFile) -> _EntryState:
    try:
        entry = entries.get(id_)
    except Refusal as refusal:
        other = refusal.reason == OTHER_FORMAT
        return _EntryState(file, None if other else frozenset(), useless=not other)
    if entry is None:
        return _EntryState(file, frozenset())
    return _EntryState(file, frozenset(artifact.object for artifact in entry.artifacts), entry.is_outdated)


def _remove_litter(root: Path, entries: EntryFolder, objects: ObjectFolder) -> int:
    # Files that are written when a store is opened, without a lock.
    opening = (path for path in root.glob(f"{TEMPORARY}*") if _is_older(path, _LITTER_SECONDS))
    return sum(map(remove, [*entries.find_litter(), *objects.find_litter(), *opening])) + _remove_locks(root / "locks")


def _remove_locks(folder: Path) -> int:
    """Removes the lock files of processes that were killed while they compiled."""
    removed = 0
    for name in os.listdir(folder):
        if "." in name and not name.startswith(ASIDE):
            with FileLock(folder / name, removes_file=True) as lock, suppress(OSError):
                removed += lock.acquire(0.0)
    return removed


def _choose_victims(seen: Mapping[str, _EntryState], sizes: Mapping[str, int], limit: int, max_age: float) -> list[str]:
    """Returns the entries to remove. An object of several entries is freed with the last of them."""
    now = time.time()
    users = Counter(digest for entry in seen.values() for digest in entry.objects or ())
    total = sum(sizes[digest] for digest in users if digest in sizes) + sum(entry.file.size for entry in seen.values())
    goal = limit if total <= limit else limit * FILL
    victims = []
    for id_, entry in sorted(seen.items(), key=lambda item: _removal_rank(item[1].file, item[0], now)):
        if entry.objects is None:
            continue
        useless = entry.useless or not entry.objects <= sizes.keys()
        if useless or total > goal or _age(entry.file, now) > max_age:
            victims.append(id_)
            users.subtract(entry.objects)
            freed = [digest for digest in entry.objects if not users[digest] and digest in sizes]
            total -= entry.file.size + sum(sizes[digest] for digest in freed)
    return victims


def _find_orphans(left: Iterable[_EntryState], sizes: Mapping[str, int]) -> list[str]:
    needed: set[str] = set()
    for entry in left:
        if entry.objects is None:
            return []
        needed |= entry.objects
    return [digest for digest in sizes if digest not in needed]


def _removal_rank(file: EntryFile, id_: str, now: float) -> tuple[bool, int, str]:
    """Returns the sort key of removal. An entry used in the future goes first: the clock was set back since."""
    return file.used / 1e9 <= now + _SKEW_SECONDS, file.used, id_


def _age(file: EntryFile, now: float) -> float:
    return max(0.0, now - file.used / 1e9)


def _is_older(path: Path, seconds: float) -> bool:
    try:
        return time.time() - path.stat().st_mtime > seconds
    except OSError:
        return False


_GONE = "an entry without its artifacts"
_Kind = Literal["entry", "object"]


@dataclass(frozen=True, slots=True)
class Damage:
    """A file whose content is not what was saved.

    Attributes:
        what: an ``entry`` or an ``object``.
        id: its name.
        reason: the kind of damage.
    """

    what: _Kind
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of ``audit``.

    Attributes:
        entries: the number of entries.
        objects: the number of objects.
        bytes: of both.
        other: the number of entries of another version, which this version cannot check.
        damaged: the damaged files.
    """

    entries: int
    objects: int
    bytes: int
    other: int
    damaged: tuple[Damage, ...]


def audit(root: Path) -> Audit:
    """Reads and checks all files of a store. Files that other processes remove meanwhile do not count.

    Args:
        root: of the store.

    Raises:
        OSError: if its folders cannot be read.
    """
    entries, objects = EntryFolder(root / "entries"), ObjectFolder(root / "objects")
    sizes, found = objects.sizes(), entries.list_files()
    ids: list[tuple[_Kind, str]] = [*(("object", digest) for digest in sizes), *(("entry", id_) for id_ in found)]
    damaged = [damage for what, id_ in ids if (damage := _look_for_damage(entries, objects, sizes, what, id_))]
    size = sum(sizes.values()) + sum(file.size for file in found.values())
    real = tuple(damage for damage in damaged if damage.reason != OTHER_FORMAT)
    return Audit(len(found), len(sizes), size, len(damaged) - len(real), real)


def find_aside(root: Path) -> tuple[str, ...]:
    """Returns the paths, relative to a store's root, of foreign files and folders that were set aside.

    They were in the place of the store's files. They may be a user's, so they stay.
    """
    found = (path for depth in ("", "*/", "*/*/") for path in root.glob(f"{depth}{ASIDE}*"))
    return tuple(sorted(str(path.relative_to(root)) for path in found))


def remove_damaged(root: Path, damaged: Iterable[Damage]) -> int:
    """Removes these files as far as they are still damaged. Returns the number of removed files.

    Raises:
        Refusal: if others save all the time.
        OSError: if there are no locks.
    """
    entries, objects = EntryFolder(root / "entries"), ObjectFolder(root / "objects")
    removed = 0
    # Without the lock another process could replace a damaged file by an intact one, which must stay.
    with hold_exclusively(root / "locks" / "store"):
        sizes = objects.sizes()
        # Entries first, because the damage of an entry may be in its object.
        for damage in sorted(damaged, key=lambda damage: damage.what):
            folder = entries if damage.what == "entry" else objects
            if _look_for_damage(entries, objects, sizes, damage.what, damage.id):
                removed += folder.remove(damage.id)
    return removed


def _look_for_damage(
    entries: EntryFolder, objects: ObjectFolder, sizes: Mapping[str, int], what: _Kind, id_: str
) -> Damage | None:
    try:
        if what == "object":
            objects.get(id_, sizes.get(id_, 0))
            return None
        entry = entries.get(id_)
        for artifact in entry.artifacts if entry else ():
            # It is None as well if another process removed the entry and its objects since they were listed.
            if objects.get(artifact.object, artifact.size) is None and entries.exists(id_):
                return Damage(what, id_, _GONE)
    except Refusal as refusal:
        return Damage(what, id_, refusal.reason)
    except OSError as error:
        return Damage(what, id_, f"cannot be read: {name_cause(error)}")
    return None


OTHER_KEY = "an entry for another key with the same digest"

_FULL = "the store is full of what another version of fusioncache stored"
_FULL_SECONDS = 60.0
"""Seconds for which saves are refused after a sweep did not make enough room."""

_PARTS = 16
"""A process measures the store again after it has added this fraction of the size limit: other processes add, too."""


class DiskStore:
    """Entries and objects of one directory.

    Args:
        directory: the checked directory.
        max_bytes: the maximum size of all files.
        max_age: seconds after which an unused entry is removed.

    Attributes:
        report: called for a problem that stops nothing, with a reason to count and a message.
    """

    def __init__(self, directory: Directory, max_bytes: int, max_age: float):
        self.directory = directory
        self.entries = EntryFolder(directory.path / "entries")
        self._objects = ObjectFolder(directory.path / "objects")
        self.report: Callable[[str, str], None] = lambda reason, message: None
        self._lock_path = directory.path / "locks" / "store"
        self.max_bytes = max_bytes
        self._max_age = max_age
        self._size: int | None = None
        self._since = 0
        self._full_until = 0.0
        self._lock = forks.lock()

    def load(self, key: Key, id_: str) -> StoredArtifacts | None:
        """Returns the artifacts of an entry, every byte verified; None if there is no entry.

        Raises:
            Refusal: if the entry is for another key, damaged or not trusted.
            StoreError: if the directory was removed or replaced.
            OSError: if it cannot be read.
        """
        self.directory.require()
        if not self.entries.exists(id_):
            return None
        if self.directory.writable:
            self.entries.touch(id_)
        entry = self._entry(id_, key.text)
        try:
            return None if entry is None else StoredArtifacts(self.contents(entry), entry.seconds, bool(entry.origin))
        except Refusal:
            if self.entries.exists(id_):
                raise
            return None  # it was removed meanwhile

    def contents(self, entry: Entry) -> dict[str, bytes]:
        """Returns the artifacts of an entry, every byte verified.

        Raises:
            Refusal: if one is missing or damaged.
            OSError: if one cannot be read.
        """
        return {artifact.name: self.content(artifact) for artifact in entry.artifacts}

    def content(self, artifact: Artifact) -> bytes:
        """Returns one artifact, every byte verified.

        Raises:
            Refusal: if it is missing or damaged.
            OSError: if it cannot be read.
        """
        content = self._objects.get(artifact.object, artifact.size)
        if content is None:
            raise Refusal(_GONE, artifact.object)
        return content

    def is_usable(self, id_: str, trust: Trust) -> bool:
        """True if a load would return this entry. Checks trust and the lengths of objects, not their contents."""
        with suppress(Refusal, OSError):
            entry = self.entries.get(id_)
            if entry is not None:
                if entry.origin is not None:
                    trust.check(entry.origin)
                return all(self._objects.has(part.object, part.size) for part in entry.artifacts)
        return False

    def list_entries(self) -> Iterator[Entry]:
        """Yields all readable entries.

        Raises:
            OSError: if the directory cannot be read.
        """
        for id_ in self.entries.list_files():
            with suppress(Refusal, OSError):
                entry = self.entries.get(id_)
                if entry is not None:
                    yield entry

    def save(self, entry: Entry, contents: Mapping[str, bytes]) -> Entry | None:
        """Publishes an entry with these artifacts in place of those it lists. Returns None if an intact one exists.

        Raises:
            Refusal: if it does not fit, or an entry of another key or format is in its place.
            StoreError: if the directory was removed or replaced.
            OSError: if it cannot be written.
        """
        self.directory.require()
        self._make_room(len(entry.text) + sum(map(len, contents.values())))
        with locks.hold(self._lock_path, locks.LOCK_SECONDS, shared=True) as held:
            if not held:
                # A stopped holder that continues may remove files that are saved meanwhile. That costs a miss only:
                # each file is whole or absent, and verified when it is read.
                said = f"the store is used without its lock, {self._lock_path}: its holder may be stopped"
                self.report(UNANSWERED, said)
            if self._has_all_objects(entry):
                return None
            artifacts = tuple(
                Artifact(name, self._objects.put(content), len(content)) for name, content in sorted(contents.items())
            )
            entry = replace(entry, artifacts=artifacts)
            size = self.entries.put(entry) + entry.size
        with self._lock:
            self._size = (self._size or 0) + size
            self._since += size
        return entry

    def remove(self, id_: str) -> None:
        """Removes an entry. The next sweep removes its objects."""
        self.directory.require()
        self.entries.remove(id_)

    def sweep(self) -> SweepResult:
        """Removes entries beyond the age or size limit, unneeded objects, and files of killed processes.

        Raises:
            Refusal: if others save all the time.
            StoreError: if the directory was removed or replaced.
            OSError: if it cannot be read, or there are no locks.
        """
        self.directory.require()
        with self._lock:
            return self._sweep(0)

    def plan(self) -> SweepResult:
        """Returns what ``sweep`` would remove now, except for litter. Removes nothing.

        Raises:
            StoreError: if the directory was removed or replaced.
            OSError: if it cannot be read.
        """
        self.directory.require()
        return self._clean(self.max_bytes, dry_run=True)

    def _entry(self, id_: str, text: str) -> Entry | None:
        entry = self.entries.get(id_)
        if entry is not None and entry.text != text:
            raise Refusal(OTHER_KEY, id_)
        if entry is not None and entry.origin is not None:
            read_trust().check(entry.origin)  # its key may have been revoked since it came
        return entry

    def _has_all_objects(self, wanted: Entry) -> bool:
        try:
            entry = self._entry(wanted.id, wanted.text)
            return entry is not None and self.contents(entry) is not None
        except Refusal as refusal:
            if refusal.reason in (OTHER_KEY, OTHER_FORMAT):
                raise  # another process can use that entry
            return False

    def _make_room(self, size: int) -> None:
        if size > self.max_bytes:
            raise Refusal("larger than the store may be")
        with self._lock:
            if time.monotonic() < self._full_until:
                raise Refusal(_FULL)
            if self._size is None or self._since > self.max_bytes // _PARTS:
                self._size, self._since = self._measure(), 0
                if any(_age(file, time.time()) > self._max_age for file in self.entries.list_files().values()):
                    with suppress(Refusal):  # there may be enough room without the sweep
                        self._sweep(size)
            if self._size + size > self.max_bytes and self._sweep(size).bytes_left + size > self.max_bytes:
                self._full_until = time.monotonic() + _FULL_SECONDS
                raise Refusal(_FULL)

    def _measure(self) -> int:
        """Returns the bytes of all entries and objects."""
        return sum(self._objects.sizes().values()) + sum(file.size for file in self.entries.list_files().values())

    def _sweep(self, room: int) -> SweepResult:
        with hold_exclusively(self._lock_path):
            swept = self._clean(self.max_bytes - room)
        self._size, self._since = swept.bytes_left, 0
        return swept

    def _clean(self, limit: int, *, dry_run: bool = False) -> SweepResult:
        """Removes useless and old entries, then the least recently used ones beyond the limit, and unneeded objects.

        The caller holds the store's lock exclusively, except for a dry run.
        """
        seen = {id_: _inspect(self.entries, id_, file) for id_, file in self.entries.list_files().items()}
        sizes = self._objects.sizes()
        victims = _choose_victims(seen, sizes, limit, self._max_age)
        gone = {id_ for id_ in victims if dry_run or self.entries.remove(id_)}
        left = [entry for id_, entry in seen.items() if id_ not in gone]
        orphans = [digest for digest in _find_orphans(left, sizes) if dry_run or self._objects.remove(digest)]
        litter = 0 if dry_run else _remove_litter(self.directory.path, self.entries, self._objects)
        size = sum(sizes.values()) - sum(sizes[digest] for digest in orphans) + sum(entry.file.size for entry in left)
        return SweepResult(len(gone), len(orphans), litter, size)
