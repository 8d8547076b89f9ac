"""Brings whole stores to another machine and from there. What is there is left alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from fusioncache.process.settings import REMOTE
from fusioncache.store.copying import Copied, Progress, Tally, each, steps
from fusioncache.store.disk import Disk
from fusioncache.store.entry import OTHER_FORMAT, Artifact, Entry, encoded
from fusioncache.store.errors import Refusal, RemoteError, StoreError
from fusioncache.store.remote import Listing, Remote
from fusioncache.store.store import Store


def push(store: Store, remote: Remote, progress: Progress | None = None, *, dry_run: bool = False) -> Copied:
    """Copies every entry that the remote does not have, each only after its objects are there.

    Args:
        store: in a directory.
        remote: that can be written.
        progress: is told how far it is.
        dry_run: whether to copy nothing and say what would be copied.

    Raises:
        StoreError: if the store is in memory, or its directory is no longer what it was.
        RemoteError: if the remote cannot be used. What was copied by then stays.
        OSError: if the store cannot be read.
    """
    disk, tally = _disk(store), Tally()
    if not remote.writable:
        raise RemoteError(f"{remote} can only be read")
    there = listing(remote, make=True)
    wanted = _missing(disk, remote, there, tally)
    objects = {part.object: part for parts in wanted.values() for part in parts if not there.has(part)}
    gone: set[str] = set()
    step = steps(progress, len(objects) + len(wanted))

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
            tally.add(entries=1, bytes=len(encoded(entry)) if dry_run else remote.put(entry))

    each(copy_object, objects.values(), tally, step)
    each(copy_entry, wanted, tally, step)
    return tally.copied()


def pull(store: Store, remote: Remote, progress: Progress | None = None, *, dry_run: bool = False) -> Copied:
    """Copies every entry that the store does not have, each after its objects, every byte verified.

    Args:
        store: in a directory.
        remote: to copy from.
        progress: is told how far it is.
        dry_run: whether to copy nothing and say what would be copied.

    Raises:
        StoreError: if the store is in memory, its directory is no longer what it was, or it may not become as large.
        RemoteError: if the remote cannot be used. What was copied by then stays.
        OSError: if the store cannot be written.
    """
    disk, tally = _disk(store), Tally()
    if not disk.directory.writable:
        raise StoreError(f"{disk.directory.path} can only be read")
    there, sizes = listing(remote, make=False), disk.sizes()
    wanted = [id_ for id_ in there.entries if not _is_whole(disk, id_, sizes)]
    tally.add(skipped=len(there.entries) - len(wanted))
    _check_room(disk, remote, [there.entries[id_] for id_ in wanted], there.objects, sizes)

    def here(part: Artifact) -> bytes | None:
        with suppress(Refusal):
            return disk.content(part)
        return None

    def copy(id_: str) -> None:
        entry = remote.entry(id_)
        if entry is None:
            return  # it was removed meanwhile
        missing = {part.object: part.size for part in entry.artifacts if sizes.get(part.object) != part.size}
        if not dry_run and disk.save(entry, remote.contents(entry, disk.max_bytes, here)) is None:
            tally.add(skipped=1)  # somebody else was faster
        else:
            tally.add(entries=1, bytes=len(encoded(entry)))
            tally.add_objects(missing)

    each(copy, wanted, tally, steps(progress, len(wanted)))
    return tally.copied()


def _disk(store: Store) -> Disk:
    if store.disk is None:
        raise StoreError("there is no directory to share")
    store.disk.directory.require()
    return store.disk


def listing(remote: Remote, *, make: bool) -> Listing:
    """What is there. Where nothing is, the place has to be: else an address with a mistake in it would be an empty one.

    Args:
        remote: to look at.
        make: whether it is going to be written.

    Raises:
        RemoteError: if the place is not there, or cannot be listed.
    """
    there = remote.listing()
    if not (there.entries or there.objects):
        remote.require(make=make)
    return there


def _missing(disk: Disk, remote: Remote, there: Listing, tally: Tally) -> dict[str, tuple[Artifact, ...]]:
    """The artifacts of each entry that the remote does not have."""
    missing = {}

    def look(id_: str) -> None:
        entry = disk.entries.get(id_)
        if entry and _has(remote, there, entry):
            tally.add(skipped=1)
        elif entry:
            missing[id_] = entry.artifacts

    each(look, disk.entries.found(), tally)
    return missing


def _has(remote: Remote, there: Listing, entry: Entry) -> bool:
    """Whether the remote has an entry for the same key with all that it needs."""
    size = there.entries.get(entry.id, -1)
    if size == -1:
        return False
    theirs: Entry | None = entry
    if size != len(encoded(entry)):
        try:
            theirs = remote.entry(entry.id)
        except Refusal as refusal:
            return refusal.reason == OTHER_FORMAT  # which is somebody else's
    return theirs is not None and all(map(there.has, theirs.artifacts))


def _is_whole(disk: Disk, id_: str, sizes: Mapping[str, int]) -> bool:
    try:
        entry = disk.entries.get(id_)
    except Refusal as refusal:
        return refusal.reason == OTHER_FORMAT
    return entry is not None and all(sizes.get(part.object) == part.size for part in entry.artifacts)


def _check_room(
    disk: Disk,
    remote: Remote,
    entries: Iterable[int | None],
    objects: Mapping[str, int | None],
    sizes: Mapping[str, int],
) -> None:
    """Or what comes first would make room for what comes last."""
    needed = sum(size or 0 for size in entries)
    needed += sum(size or 0 for digest, size in objects.items() if digest not in sizes)
    if needed > disk.max_bytes:
        raise StoreError(
            f"{remote} has {needed} bytes that are not here, and the store may have {disk.max_bytes}: with "
            f"{REMOTE.name} set to it, what is used is brought when it is used"
        )
