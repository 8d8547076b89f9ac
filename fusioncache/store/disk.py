"""A store's directory in use: loads and saves whole entries, removes what is too old, too much or damaged."""

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
from fusioncache.store.locks import UNANSWERED, FileLock, hold_alone
from fusioncache.store.signing import Trust, read_trust

FILL = 0.9
"""How full a store is that was too full, so that the next save does not have to clean up again."""

_SKEW_SECONDS = 3600.0
_LITTER_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What cleaning up did.

    Attributes:
        entries: how many were removed.
        objects: how many were removed.
        litter: how many files of killed processes were removed.
        bytes_left: of all entries and objects that stayed.
    """

    entries: int
    objects: int
    litter: int
    bytes_left: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """An entry's file, the objects that it needs (None if only another version can say), and whether it is useless."""

    file: EntryFile
    objects: frozenset[str] | None
    useless: bool = False


def _look(entries: EntryFolder, id_: str, file: EntryFile) -> _Seen:
    try:
        entry = entries.get(id_)
    except Refusal as refusal:
        other = refusal.reason == OTHER_FORMAT
        return _Seen(file, None if other else frozenset(), useless=not other)
    if entry is None:
        return _Seen(file, frozenset())
    return _Seen(file, frozenset(artifact.object for artifact in entry.artifacts), entry.is_outdated)


def _remove_litter(root: Path, entries: EntryFolder, objects: ObjectFolder) -> int:
    # What is written at opening, when no other process is kept out.
    opening = (path for path in root.glob(f"{TEMPORARY}*") if _is_older(path, _LITTER_SECONDS))
    return sum(map(remove, [*entries.find_litter(), *objects.find_litter(), *opening])) + _remove_locks(root / "locks")


def _remove_locks(folder: Path) -> int:
    """Removes the lock files of processes that were killed while they compiled."""
    removed = 0
    for name in os.listdir(folder):
        if "." in name and not name.startswith(ASIDE):
            with FileLock(folder / name, passing=True) as lock, suppress(OSError):
                removed += lock.acquire(0.0)
    return removed


def _choose_victims(seen: Mapping[str, _Seen], sizes: Mapping[str, int], limit: int, max_age: float) -> list[str]:
    """Chooses the entries to remove. Objects that several entries need go with the last of them."""
    now = time.time()
    users = Counter(digest for entry in seen.values() for digest in entry.objects or ())
    total = sum(sizes[digest] for digest in users if digest in sizes) + sum(entry.file.size for entry in seen.values())
    goal = limit if total <= limit else limit * FILL
    victims = []
    for id_, entry in sorted(seen.items(), key=lambda item: _turn(item[1].file, item[0], now)):
        if entry.objects is None:
            continue
        useless = entry.useless or not entry.objects <= sizes.keys()
        if useless or total > goal or _age(entry.file, now) > max_age:
            victims.append(id_)
            users.subtract(entry.objects)
            freed = [digest for digest in entry.objects if not users[digest] and digest in sizes]
            total -= entry.file.size + sum(sizes[digest] for digest in freed)
    return victims


def _find_orphans(left: Iterable[_Seen], sizes: Mapping[str, int]) -> list[str]:
    needed: set[str] = set()
    for entry in left:
        if entry.objects is None:
            return []
        needed |= entry.objects
    return [digest for digest in sizes if digest not in needed]


def _turn(file: EntryFile, id_: str, now: float) -> tuple[bool, int, str]:
    """Returns the rank in which an entry goes. One used in the future was used before the clock was set back."""
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
    """One file that is not what was saved.

    Attributes:
        what: an ``entry`` or an ``object``.
        id: its name.
        reason: what is wrong with it.
    """

    what: _Kind
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found.

    Attributes:
        entries: how many there are.
        objects: how many there are.
        bytes: of both.
        other: entries of another version, which only that can judge.
        damaged: those that are.
    """

    entries: int
    objects: int
    bytes: int
    other: int
    damaged: tuple[Damage, ...]


def audit(root: Path) -> Audit:
    """Reads everything. Others may go on meanwhile; what they remove is not missed.

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
    """Returns the paths, below the root of a store, of what stood in the way of the store's files and was set aside.

    These are not the store's, may be a user's, and stay.
    """
    found = (path for depth in ("", "*/", "*/*/") for path in root.glob(f"{depth}{ASIDE}*"))
    return tuple(sorted(str(path.relative_to(root)) for path in found))


def remove_damaged(root: Path, damaged: Iterable[Damage]) -> int:
    """Removes what is still damaged of this. Returns how many files went.

    Raises:
        Refusal: if others save all the time.
        OSError: if there are no locks.
    """
    entries, objects = EntryFolder(root / "entries"), ObjectFolder(root / "objects")
    removed = 0
    # A process that saves now would put a whole file in place of a damaged one, which must stay.
    with hold_alone(root / "locks" / "store"):
        sizes = objects.sizes()
        # Entries first: what is wrong with one may be its object.
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
            # None also where both went since they were listed, and then there is no entry any more.
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
"""How long a store that could not be made smaller is left alone."""

_PARTS = 16
"""A process looks at the size of the store again when it has added this part of what may be in it, so that what others
add is seen too."""


class DiskStore:
    """Entries and objects of one directory.

    Args:
        directory: that was checked.
        max_bytes: the most that all files may have.
        max_age: seconds after which an unused entry is removed.

    Attributes:
        report: is told what does not go as it should and stops nothing: a reason to count, and what to say.
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
            Refusal: if what is there is not for this very key, or not what was saved.
            StoreError: if the directory is no longer what it was.
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
            Refusal: if one is not there, or not what was saved.
            OSError: if one cannot be read.
        """
        return {artifact.name: self.content(artifact) for artifact in entry.artifacts}

    def content(self, artifact: Artifact) -> bytes:
        """Returns one artifact, every byte verified.

        Raises:
            Refusal: if it is not there, or not what was saved.
            OSError: if it cannot be read.
        """
        content = self._objects.get(artifact.object, artifact.size)
        if content is None:
            raise Refusal(_GONE, artifact.object)
        return content

    def is_usable(self, id_: str, trust: Trust) -> bool:
        """Returns whether there is an entry that a load would give out, as far as the lengths of its files say."""
        with suppress(Refusal, OSError):
            entry = self.entries.get(id_)
            if entry is not None:
                if entry.origin is not None:
                    trust.check(entry.origin)
                return all(self._objects.has(part.object, part.size) for part in entry.artifacts)
        return False

    def list_entries(self) -> Iterator[Entry]:
        """Yields all entries that can be read.

        Raises:
            OSError: if the directory cannot be read.
        """
        for id_ in self.entries.list_files():
            with suppress(Refusal, OSError):
                entry = self.entries.get(id_)
                if entry is not None:
                    yield entry

    def save(self, entry: Entry, contents: Mapping[str, bytes]) -> Entry | None:
        """Publishes an entry with these artifacts, whatever it lists. None if one for this key is there and whole.

        Raises:
            Refusal: if it does not fit, or another key has its place.
            StoreError: if the directory is no longer what it was.
            OSError: if it cannot be written.
        """
        self.directory.require()
        self._make_room(len(entry.text) + sum(map(len, contents.values())))
        with locks.hold(self._lock_path, locks.LOCK_SECONDS, shared=True) as held:
            if not held:
                # If its holder is stopped and goes on later, it may remove what is saved meanwhile. That is a miss,
                # which heals: each file is there whole or not at all, and checked when it is read.
                said = f"the store is used without its lock, {self._lock_path}: its holder may be stopped"
                self.report(UNANSWERED, said)
            if self._is_whole(entry):
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
        """Removes an entry. Its objects go with the next sweep."""
        self.directory.require()
        self.entries.remove(id_)

    def sweep(self) -> SweepResult:
        """Removes what is too old or too much, and what killed processes left.

        Raises:
            Refusal: if others save all the time.
            StoreError: if the directory is no longer what it was.
            OSError: if it cannot be read, or there are no locks.
        """
        self.directory.require()
        with self._lock:
            return self._sweep(0)

    def plan(self) -> SweepResult:
        """Returns what ``sweep`` would remove now. Removes nothing, and leaves litter out of account.

        Raises:
            StoreError: if the directory is no longer what it was.
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

    def _is_whole(self, wanted: Entry) -> bool:
        try:
            entry = self._entry(wanted.id, wanted.text)
            return entry is not None and self.contents(entry) is not None
        except Refusal as refusal:
            if refusal.reason in (OTHER_KEY, OTHER_FORMAT):
                raise  # it is as good as this one, for another process
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
                    with suppress(Refusal):  # there may be room all the same
                        self._sweep(size)
            if self._size + size > self.max_bytes and self._sweep(size).bytes_left + size > self.max_bytes:
                self._full_until = time.monotonic() + _FULL_SECONDS
                raise Refusal(_FULL)

    def _measure(self) -> int:
        """Returns the bytes of all entries and objects."""
        return sum(self._objects.sizes().values()) + sum(file.size for file in self.entries.list_files().values())

    def _sweep(self, room: int) -> SweepResult:
        with hold_alone(self._lock_path):
            swept = self._clean(self.max_bytes - room)
        self._size, self._since = swept.bytes_left, 0
        return swept

    def _clean(self, limit: int, *, dry_run: bool = False) -> SweepResult:
        """Removes entries that are too old, then the least recently used until all fits, and what needs no entry.

        The caller holds the lock of the store alone unless nothing is to be removed.
        """
        seen = {id_: _look(self.entries, id_, file) for id_, file in self.entries.list_files().items()}
        sizes = self._objects.sizes()
        victims = _choose_victims(seen, sizes, limit, self._max_age)
        gone = {id_ for id_ in victims if dry_run or self.entries.remove(id_)}
        left = [entry for id_, entry in seen.items() if id_ not in gone]
        orphans = [digest for digest in _find_orphans(left, sizes) if dry_run or self._objects.remove(digest)]
        litter = 0 if dry_run else _remove_litter(self.directory.path, self.entries, self._objects)
        size = sum(sizes.values()) - sum(sizes[digest] for digest in orphans) + sum(entry.file.size for entry in left)
        return SweepResult(len(gone), len(orphans), litter, size)
