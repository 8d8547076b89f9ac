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
from fusioncache.store.locks import FileLock
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


def measure(entries: EntryFolder, objects: ObjectFolder) -> tuple[int, float]:
    """Returns the bytes of all entries and objects, and the longest time in seconds that an entry was not used."""
    found, now = entries.list_files(), time.time()
    size = sum(objects.sizes().values()) + sum(file.size for file in found.values())
    return size, max((_age(file, now) for file in found.values()), default=0.0)


def sweep(
    root: Path, entries: EntryFolder, objects: ObjectFolder, limit: int, max_age: float, *, dry_run: bool = False
) -> SweepResult:
    """Removes entries that are too old, then the least recently used until all fits, and what needs no entry.

    Args:
        root: of the store, whose lock the caller holds alone unless nothing is to be removed.
        entries: in it.
        objects: in it.
        limit: the most bytes that may stay.
        max_age: the most seconds that an entry may stay unused.
        dry_run: whether to remove nothing and say what would be removed. Litter is left out of account then.

    Raises:
        OSError: if it cannot be read.
    """
    seen = {id_: _look(entries, id_, file) for id_, file in entries.list_files().items()}
    sizes = objects.sizes()
    victims = _choose_victims(seen, sizes, limit, max_age)
    gone = {id_ for id_ in victims if dry_run or entries.remove(id_)}
    left = [entry for id_, entry in seen.items() if id_ not in gone]
    orphans = [digest for digest in _find_orphans(left, sizes) if dry_run or objects.remove(digest)]
    litter = 0 if dry_run else _remove_litter(root, entries, objects, max_age)
    size = sum(sizes.values()) - sum(sizes[digest] for digest in orphans) + sum(entry.file.size for entry in left)
    return SweepResult(len(gone), len(orphans), litter, size)


def _look(entries: EntryFolder, id_: str, file: EntryFile) -> _Seen:
    try:
        entry = entries.get(id_)
    except Refusal as refusal:
        other = refusal.reason == OTHER_FORMAT
        return _Seen(file, None if other else frozenset(), useless=not other)
    if entry is None:
        return _Seen(file, frozenset())
    return _Seen(file, frozenset(artifact.object for artifact in entry.artifacts), is_outdated(entry.text))


def _remove_litter(root: Path, entries: EntryFolder, objects: ObjectFolder, max_age: float) -> int:
    litter = [*entries.find_litter(), *objects.find_litter()]
    # What is written at opening, when no other process is kept out, and the index of an earlier version.
    ages = {TEMPORARY: _LITTER_SECONDS, INDEX: max_age}
    for name in os.listdir(root):
        if any(name.startswith(start) and _is_older(root / name, limit) for start, limit in ages.items()):
            litter.append(root / name)
    return sum(map(remove, litter)) + _remove_locks(root / "locks")


def _remove_locks(folder: Path) -> int:
    """Removes the lock files of processes that were killed while they compiled."""
    removed = 0
    for name in os.listdir(folder):
        if "." in name and not name.startswith(ASIDE):
            lock = FileLock(folder / name, passing=True)
            with suppress(OSError):
                removed += lock.acquire(0.0)
            lock.release()
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
