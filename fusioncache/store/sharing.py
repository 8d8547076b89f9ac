"""Brings whole stores to another machine and from there. What is there is left alone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

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


@dataclass(frozen=True, slots=True)
class _Done:
    """What became of one file: counts of ``CopyResult``, and the bytes of objects by digest."""

    entries: int = 0
    bytes: int = 0
    skipped: int = 0
    objects: Mapping[str, int] = field(default_factory=dict)


class _Copying:
    """Does something with many files, several at once, and counts what became of them.

    Args:
        what: is done, such as ``push``.
        remote: with which it is done.
        progress: is told how far it is.
    """

    def __init__(self, what: str, remote: Remote, progress: Progress | None):
        self._end = time.monotonic() + SECONDS
        self._name = f"the {what} with {remote}"
        self._progress = progress or (lambda done, total: None)
        self._total = self._seen = 0
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._objects: dict[str, int] = {}

    def expect(self, files: int) -> None:
        """Tells how many files there are."""
        self._total = files
        self._progress(0, files)

    def skip(self, entries: int) -> None:
        """Counts entries that are there already."""
        self._counts["skipped"] += entries

    def run[T](self, work: Callable[[T], _Done], items: Iterable[T]) -> None:
        """Does all of it. What is refused is counted; anything else that is raised ends it.

        Raises:
            StoreError: if it takes too long.
        """
        with ThreadPoolExecutor(AT_ONCE) as pool:
            try:
                for future in as_completed([pool.submit(self._work_in_time, work, item) for item in items]):
                    self._count(future)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _work_in_time[T](self, work: Callable[[T], _Done], item: T) -> _Done:
        if time.monotonic() > self._end:
            said = f"took more than {SECONDS / 60:.0f} min: what was copied stays, and the next one goes on from there"
            raise StoreError(f"{self._name} {said}")
        return work(item)

    def _count(self, future: Future[_Done]) -> None:
        try:
            done = future.result()
        except Refusal as refusal:
            self._refused[refusal.reason] += 1
        else:
            self._counts.update(entries=done.entries, bytes=done.bytes, skipped=done.skipped)
            self._objects |= done.objects  # one that several entries need is one
        if self._total:
            self._seen += 1
            self._progress(self._seen, self._total)

    def freeze(self) -> CopyResult:
        """Returns what was counted by now."""
        counts, objects = self._counts, self._objects
        size = counts["bytes"] + sum(objects.values())
        refused = MappingProxyType(dict(self._refused))
        return CopyResult(counts["entries"], len(objects), size, counts["skipped"], refused)


def push(store: Store, remote: Remote, progress: Progress | None = None, *, dry_run: bool = False) -> CopyResult:
    """Copies every entry that the remote does not have, each only after its objects are there.

    Args:
        store: in a directory.
        remote: that can be written.
        progress: is told how far it is.
        dry_run: whether to copy nothing and say what would be copied.

    Raises:
        StoreError: if the store has no directory, or its directory is no longer what it was, or if the remote
            cannot be used. What was copied by then stays.
        OSError: if the store cannot be read.
    """
    disk, copying = _require_disk(store), _Copying("push", remote, progress)
    if not remote.writable:
        raise StoreError(f"{remote} can only be read")
    there = list_remote(remote, make=True)
    wanted: dict[str, tuple[Artifact, ...]] = {}
    gone: set[str] = set()

    def look(id_: str) -> _Done:
        entry = disk.entries.get(id_)
        if entry and is_outdated(entry.text):
            raise Refusal(OTHER_FORMAT)
        if entry and _has(remote, there, entry):
            return _Done(skipped=1)
        if entry:
            wanted[id_] = entry.artifacts
        return _Done()

    def copy_object(part: Artifact) -> _Done:
        try:
            content = disk.content(part)
        except Refusal:
            gone.add(part.object)
            raise
        if not dry_run:
            remote.put_object(part, content)
        return _Done(objects={part.object: part.size})

    def copy_entry(id_: str) -> _Done:
        entry = disk.entries.get(id_)
        # It may have been removed or replaced meanwhile.
        if not entry or entry.artifacts != wanted[id_] or gone.intersection(part.object for part in wanted[id_]):
            return _Done()
        return _Done(entries=1, bytes=len(encode_entry(entry)) if dry_run else remote.put(entry))

    copying.run(look, disk.entries.list_files())
    objects = {part.object: part for parts in wanted.values() for part in parts if not there.has(part)}
    copying.expect(len(objects) + len(wanted))
    copying.run(copy_object, objects.values())
    copying.run(copy_entry, wanted)
    return copying.freeze()


def pull(store: Store, remote: Remote, progress: Progress | None = None, *, dry_run: bool = False) -> CopyResult:
    """Copies every entry that the store does not have, each after its objects, every byte verified.

    Args:
        store: in a directory.
        remote: to copy from.
        progress: is told how far it is.
        dry_run: whether to copy nothing and say what would be copied.

    Raises:
        StoreError: if the store has no directory, its directory is no longer what it was, it may not become as large,
            or the remote cannot be used. What was copied by then stays.
        OSError: if the store cannot be written.
    """
    disk, copying = _require_disk(store), _Copying("pull", remote, progress)
    if not disk.directory.writable:
        raise StoreError(f"{disk.directory.path} can only be read")
    there, sizes = list_remote(remote, make=False), disk.sizes()
    wanted = [id_ for id_ in there.entries if not _is_whole(disk, id_, sizes)]
    copying.skip(len(there.entries) - len(wanted))
    # For all of it, or what comes first would make room for what comes last.
    needed = sum(there.entries[id_] or 0 for id_ in wanted)
    _require_room(disk, remote, needed + sum(size or 0 for each, size in there.objects.items() if each not in sizes))
    brought: list[int] = []

    def here(part: Artifact) -> bytes | None:
        with suppress(Refusal):
            return disk.content(part)
        return None

    def copy(id_: str) -> _Done:
        entry = remote.entry(id_)
        if entry is None:
            return _Done()  # it was removed meanwhile
        if is_outdated(entry.text):
            raise Refusal(OTHER_FORMAT)
        missing = {part.object: part.size for part in entry.artifacts if sizes.get(part.object) != part.size}
        brought.append(len(entry.text) + sum(missing.values()))
        _require_room(disk, remote, sum(brought))
        if not dry_run and disk.save(entry, remote.contents(entry, disk.max_bytes, here)) is None:
            return _Done(skipped=1)  # another process was faster
        return _Done(entries=1, bytes=len(encode_entry(entry)), objects=missing)

    copying.expect(len(wanted))
    copying.run(copy, wanted)
    return copying.freeze()


def _require_disk(store: Store) -> DiskStore:
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
            return refusal.reason == OTHER_FORMAT  # which is another version's
    return theirs is not None and all(map(there.has, theirs.artifacts))


def _is_whole(disk: DiskStore, id_: str, sizes: Mapping[str, int]) -> bool:
    try:
        entry = disk.entries.get(id_)
    except Refusal as refusal:
        return refusal.reason == OTHER_FORMAT
    return entry is not None and all(sizes.get(part.object) == part.size for part in entry.artifacts)


def _require_room(disk: DiskStore, remote: Remote, needed: int) -> None:
    if needed > disk.max_bytes:
        raise StoreError(
            f"{remote} has {needed} bytes that are not here, and the store may have {disk.max_bytes}: with "
            f"{REMOTE.name} set to it, what is used is brought when it is used"
        )
