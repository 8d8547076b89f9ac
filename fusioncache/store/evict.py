"""What to remove from a store that is too large or too old, and what killed processes left in it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fusioncache.process.places import ASIDE, remove
from fusioncache.store.directory import INDEX
from fusioncache.store.entry import OTHER_FORMAT
from fusioncache.store.errors import Refusal
from fusioncache.store.files import TEMPORARY
from fusioncache.store.folders import EntryFile, EntryFolder, ObjectFolder
from fusioncache.store.leases import find_leased
from fusioncache.store.locks import FileLock, SweepLock
from fusioncache.store.slots import is_outdated

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


@dataclass(frozen=True, slots=True)
class Sweeper:
    """Cleans up one directory.

    Attributes:
        root: of the store.
        entries: in it.
        objects: in it.
        sweep_lock: keeps savers out meanwhile.
    """

    root: Path
    entries: EntryFolder
    objects: ObjectFolder
    sweep_lock: SweepLock

    def measure(self) -> tuple[int, float]:
        """Returns the bytes of all entries and objects, and the longest time in seconds that an entry was not used."""
        found, now = self.entries.list_files(), time.time()
        size = sum(self.objects.sizes().values()) + sum(file.size for file in found.values())
        return size, max((_age(file, now) for file in found.values()), default=0.0)

    def sweep(self, limit: int, max_age: float) -> SweepResult:
        """Removes entries that are too old, then the least recently used until all fits; never one that is in use.

        Args:
            limit: the most bytes that may stay.
            max_age: the most seconds that an entry may stay unused.

        Raises:
            Refusal: if others save all the time.
            OSError: if it cannot be read, or there are no locks.
        """
        # Most of the reading is done while others go on. What they change meanwhile is read again.
        before = self._entries({})
        with self.sweep_lock.hold_exclusive():
            seen, sizes = self._entries(before), self.objects.sizes()
            used = find_leased(self.root / "uses")
            removed = {id_ for id_ in _choose_victims(seen, sizes, used, limit, max_age) if self.entries.remove(id_)}
            left = {id_: entry for id_, entry in seen.items() if id_ not in removed}
            orphans = [digest for digest in _find_orphans(left.values(), sizes) if self.objects.remove(digest)]
            litter = self._remove_litter(max_age)
        return SweepResult(len(removed), len(orphans), litter, _size(left.values(), sizes, orphans))

    def plan(self, limit: int, max_age: float) -> SweepResult:
        """Returns what ``sweep`` would do now. Removes nothing, keeps nobody out, and leaves litter out of account.

        Raises:
            OSError: if it cannot be read.
        """
        seen, sizes = self._entries({}), self.objects.sizes()
        victims = set(_choose_victims(seen, sizes, find_leased(self.root / "uses"), limit, max_age))
        left = [entry for id_, entry in seen.items() if id_ not in victims]
        orphans = _find_orphans(left, sizes)
        return SweepResult(len(victims), len(orphans), 0, _size(left, sizes, orphans))

    def _entries(self, before: Mapping[str, _Seen]) -> dict[str, _Seen]:
        seen = {}
        for id_, file in self.entries.list_files().items():
            known = before.get(id_)
            seen[id_] = known if known and known.file == file else self._look(id_, file)
        return seen

    def _look(self, id_: str, file: EntryFile) -> _Seen:
        try:
            entry = self.entries.get(id_)
        except Refusal as refusal:
            other = refusal.reason == OTHER_FORMAT
            return _Seen(file, None if other else frozenset(), useless=not other)
        if entry is None:
            return _Seen(file, frozenset())
        return _Seen(file, frozenset(artifact.object for artifact in entry.artifacts), is_outdated(entry.text))

    def _remove_litter(self, max_age: float) -> int:
        litter = [*self.entries.find_litter(), *self.objects.find_litter()]
        for name in os.listdir(self.root):
            # Written at opening, when nobody is kept out; and indexes that were set aside, which somebody may look at.
            age = {TEMPORARY: _LITTER_SECONDS, f"{INDEX}.": max_age}
            if any(name.startswith(start) and _is_older(self.root / name, limit) for start, limit in age.items()):
                litter.append(self.root / name)
        return sum(map(remove, litter)) + self._remove_locks()

    def _remove_locks(self) -> int:
        """Removes the lock files of those who were killed while they compiled."""
        removed = 0
        for name in os.listdir(self.root / "locks"):
            if "." in name and not name.startswith(ASIDE):
                lock = FileLock(self.root / "locks" / name, passing=True)
                with suppress(OSError):
                    removed += lock.acquire(0.0)
                lock.release()
        return removed


def _choose_victims(
    seen: Mapping[str, _Seen], sizes: Mapping[str, int], used: set[str], limit: int, max_age: float
) -> list[str]:
    """Chooses the entries to remove. Objects that several entries need go with the last of them."""
    now = time.time()
    users = Counter(digest for entry in seen.values() for digest in entry.objects or ())
    total = sum(sizes[digest] for digest in users if digest in sizes) + sum(entry.file.size for entry in seen.values())
    goal = limit if total <= limit else limit * FILL
    victims = []
    for id_, entry in sorted(seen.items(), key=lambda item: _turn(item[1].file, item[0], now)):
        if id_ in used or entry.objects is None:
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


def _size(left: Iterable[_Seen], sizes: Mapping[str, int], orphans: Iterable[str]) -> int:
    """Returns the bytes of these entries, and of all objects but the orphans."""
    objects = sum(sizes.values()) - sum(sizes[digest] for digest in orphans)
    return objects + sum(entry.file.size for entry in left)


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
