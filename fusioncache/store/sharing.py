"""Brings whole stores to another machine and from there. What is there is left alone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

from fusioncache.process import forks
from fusioncache.process.settings import REMOTE
from fusioncache.store.disk import DiskStore
from fusioncache.store.entry import OTHER_FORMAT, Artifact, Entry, encode_entry
from fusioncache.store.errors import Refusal, StoreError
from fusioncache.store.remote import Remote, RemoteFiles
from fusioncache.store.slots import is_outdated
from fusioncache.store.store import Store

AT_ONCE = 8

SECONDS = 3600.0
"""How long a push or a pull may take. What was copied by then stays, and the next one goes on."""

Progress = Callable[[int, int], None]
"""Is told how many files were dealt with, and of how many. It is called on the caller's thread."""


@dataclass(frozen=True, slots=True)
class CopyResult:
    """What was brought, or would be.

    Attributes:
        entries: how many.
        objects: how many.
        bytes: of both.
        skipped: entries that were there already.
        refused: entries and objects that were left out, by reason.
    """

    entries: int
    objects: int
    bytes: int
    skipped: int
    refused: Mapping[str, int]


class Tally:
    """Counts on any thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._objects: set[str] = set()
        self._lock = forks.lock()

    def add(self, **counts: int) -> None:
        """Adds to the fields of ``CopyResult`` with these names."""
        with self._lock:
            self._counts.update(counts)

    def add_objects(self, sizes: Mapping[str, int]) -> None:
        """Adds objects with their bytes by digest. One that several entries need is one."""
        with self._lock:
            new = sizes.keys() - self._objects
            self._objects |= new
            self._counts.update(objects=len(new), bytes=sum(sizes[digest] for digest in new))

    def refuse(self, refusal: Refusal) -> None:
        """Counts something that was left out."""
        with self._lock:
            self._refused[refusal.reason] += 1

    def freeze(self) -> CopyResult:
        """Returns what was counted by now."""
        count = self._counts
        refused = MappingProxyType(dict(self._refused))
        return CopyResult(count["entries"], count["objects"], count["bytes"], count["skipped"], refused)


class Total:
    """A sum that grows on any thread."""

    def __init__(self) -> None:
        self._sum = 0
        self._lock = forks.lock()

    def take(self, number: int) -> int:
        """Adds a number; returns the sum."""
        with self._lock:
            self._sum += number
            return self._sum


def count_steps(progress: Progress | None, total: int) -> Callable[[], None]:
    """Returns what to call after each of so many files."""
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, total)

    if progress:
        progress(0, total)
    return step


def end_in_time[T](work: Callable[[T], None], what: str, remote: Remote) -> Callable[[T], None]:
    """Returns what does the work for one file after the other, as long as all together may take.

    Args:
        work: for one file.
        what: is done.
        remote: with which it is done.
    """
    end = time.monotonic() + SECONDS

    def do(item: T) -> None:
        if time.monotonic() > end:
            said = f"took more than {SECONDS / 60:.0f} min: what was copied stays, and the next one goes on from there"
            raise StoreError(f"the {what} with {remote} {said}")
        work(item)

    return do


def run_all[T](
    work: Callable[[T], None], items: Iterable[T], tally: Tally, step: Callable[[], object] = lambda: None
) -> None:
    """Does all of it, several at once. What is refused is counted; anything else that is raised ends it."""

    def guard(item: T) -> None:
        try:
            work(item)
        except Refusal as refusal:
            tally.refuse(refusal)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for future in as_completed([pool.submit(guard, item) for item in items]):
                future.result()
                step()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def push(store: Store, remote: Remote, progress: Progress | None = None, *, dry_run: bool = False) -> CopyResult:
    """Copies every entry that the remote does not have, each only after its objects are there.

    Args:
        store: in a directory.
        remote: that can be written.
        progress: is told how far it is.
        dry_run: whether to copy nothing and say what would be copied.

    Raises:
        StoreError: if the store is in memory, or its directory is no longer what it was, or if the remote
            cannot be used. What was copied by then stays.
        OSError: if the store cannot be read.
    """
    disk, tally = _disk(store), Tally()
    if not remote.writable:
        raise StoreError(f"{remote} can only be read")
    there = list_remote(remote, make=True)
    wanted = _find_missing(disk, remote, there, tally)
    objects = {part.object: part for parts in wanted.values() for part in parts if not there.has(part)}
    gone: set[str] = set()
    step = count_steps(progress, len(objects) + len(wanted))

    def copy_object(part: Artifact) -> None:
        try:
            content = disk.content(part)
        except Refusal:
            gone.add(part.object)
            raise
        if not dry_run:
            remote.put_object(part, content)
        tally.add_objects({part.object: part.size})

    def copy_entry(id_: str) -> None:
        entry = disk.entries.get(id_)
        # It may have been removed or replaced meanwhile.
        if entry and entry.artifacts == wanted[id_] and not gone.intersection(part.object for part in wanted[id_]):
            tally.add(entries=1, bytes=len(encode_entry(entry)) if dry_run else remote.put(entry))

    run_all(end_in_time(copy_object, "push", remote), objects.values(), tally, step)
    run_all(end_in_time(copy_entry, "push", remote), wanted, tally, step)
    return tally.freeze()


def pull(store: Store, remote: Remote, progress: Progress | None = None, *, dry_run: bool = False) -> CopyResult:
    """Copies every entry that the store does not have, each after its objects, every byte verified.

    Args:
        store: in a directory.
        remote: to copy from.
        progress: is told how far it is.
        dry_run: whether to copy nothing and say what would be copied.

    Raises:
        StoreError: if the store is in memory, its directory is no longer what it was, it may not become as large, or
            the remote cannot be used. What was copied by then stays.
        OSError: if the store cannot be written.
    """
    disk, tally = _disk(store), Tally()
    if not disk.directory.writable:
        raise StoreError(f"{disk.directory.path} can only be read")
    there, sizes = list_remote(remote, make=False), disk.sizes()
    wanted = [id_ for id_ in there.entries if not _is_whole(disk, id_, sizes)]
    tally.add(skipped=len(there.entries) - len(wanted))
    _check_room(disk, remote, [there.entries[id_] for id_ in wanted], there.objects, sizes)

    room = Total()

    def here(part: Artifact) -> bytes | None:
        with suppress(Refusal):
            return disk.content(part)
        return None

    def copy(id_: str) -> None:
        entry = remote.entry(id_)
        if entry is None:
            return  # it was removed meanwhile
        if is_outdated(entry.text):
            raise Refusal(OTHER_FORMAT)
        missing = {part.object: part.size for part in entry.artifacts if sizes.get(part.object) != part.size}
        _require_room(disk, remote, room.take(len(entry.text) + sum(missing.values())))
        if not dry_run and disk.save(entry, remote.contents(entry, disk.max_bytes, here)) is None:
            tally.add(skipped=1)  # somebody else was faster
        else:
            tally.add(entries=1, bytes=len(encode_entry(entry)))
            tally.add_objects(missing)

    run_all(end_in_time(copy, "pull", remote), wanted, tally, count_steps(progress, len(wanted)))
    return tally.freeze()


def _disk(store: Store) -> DiskStore:
    if store.disk is None:
        raise StoreError("there is no directory to share")
    store.disk.directory.require()
    return store.disk


def list_remote(remote: Remote, *, make: bool) -> RemoteFiles:
    """Returns what is there. Where nothing is, the place has to be, or a wrong address would be an empty store.

    Args:
        remote: to look at.
        make: whether it is going to be written.

    Raises:
        StoreError: if the place is not there, or cannot be listed.
    """
    there = remote.list_files()
    if not (there.entries or there.objects):
        remote.require(make=make)
    return there


def _find_missing(disk: DiskStore, remote: Remote, there: RemoteFiles, tally: Tally) -> dict[str, tuple[Artifact, ...]]:
    """Returns the artifacts of each entry that the remote does not have."""
    missing = {}

    def look(id_: str) -> None:
        entry = disk.entries.get(id_)
        if entry and is_outdated(entry.text):
            raise Refusal(OTHER_FORMAT)
        if entry and _has(remote, there, entry):
            tally.add(skipped=1)
        elif entry:
            missing[id_] = entry.artifacts

    run_all(look, disk.entries.list_files(), tally)
    return missing


def _has(remote: Remote, there: RemoteFiles, entry: Entry) -> bool:
    """Returns whether the remote has an entry for the same key with all that it needs."""
    size = there.entries.get(entry.id, -1)
    if size == -1:
        return False
    theirs: Entry | None = entry
    if size != len(encode_entry(entry)):
        try:
            theirs = remote.entry(entry.id)
        except Refusal as refusal:
            return refusal.reason == OTHER_FORMAT  # which is somebody else's
    return theirs is not None and all(map(there.has, theirs.artifacts))


def _is_whole(disk: DiskStore, id_: str, sizes: Mapping[str, int]) -> bool:
    try:
        entry = disk.entries.get(id_)
    except Refusal as refusal:
        return refusal.reason == OTHER_FORMAT
    return entry is not None and all(sizes.get(part.object) == part.size for part in entry.artifacts)


def _check_room(
    disk: DiskStore,
    remote: Remote,
    entries: Iterable[int | None],
    objects: Mapping[str, int | None],
    sizes: Mapping[str, int],
) -> None:
    """Makes sure that there is room for all of it, or what comes first would make room for what comes last."""
    needed = sum(size or 0 for size in entries)
    needed += sum(size or 0 for digest, size in objects.items() if digest not in sizes)
    _require_room(disk, remote, needed)


def _require_room(disk: DiskStore, remote: Remote, needed: int) -> None:
    if needed > disk.max_bytes:
        raise StoreError(
            f"{remote} has {needed} bytes that are not here, and the store may have {disk.max_bytes}: with "
            f"{REMOTE.name} set to it, what is used is brought when it is used"
        )
