"""A store on another machine: immutable files under the names that they have on disk, every byte of them verified.

An entry is signed, and names its objects by their digests. So its signature, which is verified first, is for all that
it brings (``signing.py``).

Brings whole stores to another machine and from there. What is there is left alone.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

from fusioncache.ir import Key
from fusioncache.process.settings import REMOTE
from fusioncache.store.disk import OTHER_KEY, DiskStore
from fusioncache.store.entry import (
    DIGEST,
    ID,
    LARGEST,
    MOST_ARTIFACTS,
    MOST_BYTES,
    OTHER_FORMAT,
    Artifact,
    Entry,
    encode_entry,
    is_outdated,
    open_entry,
    sign_entry,
)
from fusioncache.store.files import Refusal, StoreError
from fusioncache.store.signing import SigningKey, read_trust
from fusioncache.store.store import Store, StoreCounts
from fusioncache.store.transport import Transport

VAIN_SECONDS = 120.0
"""How long a process asks a remote in vain, all together, since that last had something."""


@dataclass(frozen=True, slots=True)
class RemoteFiles:
    """What a remote has.

    Attributes:
        entries: the bytes of each by id, None where the remote does not say.
        objects: the bytes of each by digest, None where the remote does not say.
    """

    entries: Mapping[str, int | None]
    objects: Mapping[str, int | None]

    def has(self, artifact: Artifact) -> bool:
        """Returns whether there is an artifact, and not only a part of it."""
        return artifact.object in self.objects and self.objects[artifact.object] in (artifact.size, None)


class Remote:
    """Entries and objects below a URL of fsspec: ``s3://``, ``gs://``, ``file://``, ``memory://``, and more.

    What is at ``http://`` and ``https://`` can be read only. Nothing is asked before the first call of a method.

    Args:
        url: such as ``s3://bucket/folder`` or a path.
    """

    def __init__(self, url: str):
        self._transport = Transport(url)

    def __str__(self) -> str:
        """Returns the URL without what may be secret in it."""
        return self._transport.name

    @property
    def writable(self) -> bool:
        """Whether anything could be put there, as far as the URL says."""
        return self._transport.writable

    def entry(self, id_: str) -> Entry | None:
        """Returns an entry; None if there is none.

        Raises:
            Refusal: if no trusted key signed what is there, it is damaged, of another format, or another entry.
            StoreError: if the remote cannot be used.
        """
        content = self._transport.fetch_file(_entry_path(id_), LARGEST)
        return None if content is None else open_entry(content, id_, read_trust())

    def content(self, artifact: Artifact) -> bytes:
        """Returns one artifact, every byte verified.

        Raises:
            Refusal: if it is not there, or not what its name says.
            StoreError: if the remote cannot be used.
        """
        content = self._transport.fetch_file(_object_path(artifact.object), artifact.size, expected=artifact.size)
        if content is None:
            raise Refusal("an entry without its artifacts", artifact.object)
        if len(content) != artifact.size or hashlib.sha256(content).hexdigest() != artifact.object:
            raise Refusal("a wrong checksum", artifact.object)
        return content

    def contents(self, entry: Entry, limit: int, disk: DiskStore | None) -> dict[str, bytes]:
        """Returns the artifacts of an entry.

        Args:
            entry: as it is there.
            limit: the most bytes that all of it may have.
            disk: where artifacts may be that need not be brought.

        Raises:
            Refusal: if one is not what it says it is, or they are too large.
            StoreError: if the remote cannot be used.
        """
        size = len(entry.text) + entry.size
        if size > limit:
            raise Refusal("larger than the store may be", entry.id)
        if size > MOST_BYTES or len(entry.artifacts) > MOST_ARTIFACTS:
            raise Refusal("an entry that is too large", entry.id)
        contents = {}
        for artifact in entry.artifacts:
            content = None
            with suppress(Refusal, OSError):
                content = disk.content(artifact) if disk else None
            contents[artifact.name] = self.content(artifact) if content is None else content
        return contents

    def put(self, id_: str, content: bytes) -> None:
        """Puts an entry there, whose objects must be there.

        Args:
            id_: of the entry.
            content: of its file.

        Raises:
            StoreError: if it cannot be written.
        """
        self._transport.put_file(_entry_path(id_), content)

    def put_object(self, artifact: Artifact, content: bytes) -> None:
        """Puts the content of an artifact there.

        Raises:
            StoreError: if it cannot be written.
        """
        self._transport.put_file(_object_path(artifact.object), content)

    def list_files(self, *, make: bool = False) -> RemoteFiles:
        """Returns what is there. Files of other names are not the store's.

        Where nothing is, the place has to be, or a wrong address would be an empty store.

        Args:
            make: whether it is going to be written.

        Raises:
            StoreError: if the place is not there, or cannot be listed.
        """
        there = RemoteFiles(self._transport.sizes("entries", ID), self._transport.sizes("objects", DIGEST))
        if not (there.entries or there.objects):
            self._transport.require(make=make)
        return there


def _entry_path(id_: str) -> str:
    return f"entries/{id_[:2]}/{id_}"


def _object_path(digest: str) -> str:
    return f"objects/{digest[:2]}/{digest}"


class ReadThrough:
    """What lies behind a store.

    Args:
        url: of the remote.
        counts: is told what went wrong.
    """

    def __init__(self, url: str, counts: StoreCounts):
        self._remote = Remote(url)
        self._counts = counts
        self._failed = False
        self._vain = 0.0

    def fetch(self, key: Key, id_: str, disk: DiskStore | None, limit: int) -> tuple[Entry, dict[str, bytes]] | None:
        """Finds the entry for this very key and its artifacts; None if none can be used. Never raises.

        Args:
            key: whose text decides.
            id_: of the entry.
            disk: where artifacts may be already.
            limit: the most bytes that all of it may have.
        """
        if self._failed:
            return None
        remote, start = self._remote, time.monotonic()
        try:
            entry = remote.entry(id_)
            if entry is not None:
                if entry.text != key.text:
                    raise Refusal(OTHER_KEY, id_)
                contents = remote.contents(entry, limit, disk)
                self._vain = 0.0
                return entry, contents
        except Refusal as refusal:
            message = f"what {remote} has is not used: {refusal}"
            self._counts.count_bypass(f"remote: {refusal.reason}", message)
        except StoreError as error:
            self._fail(str(error))
        except Exception as error:  # whatever it is; what it says may be secret
            self._fail(f"{remote} cannot be used ({type(error).__name__})")
        self._vain += time.monotonic() - start
        if self._vain > VAIN_SECONDS and not self._failed:
            self._fail(f"{remote} took {self._vain:.0f} s for what it does not have")
        return None

    def _fail(self, message: str) -> None:
        self._failed = True
        self._counts.count_bypass("the remote failed", f"{message}. It is not asked again")


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


type _Counts = Mapping[str, int]
"""What became of one file, by the names that it has in ``CopyResult``."""


class _Copying:
    """Does something with many files, several at once, and counts what became of them.

    Args:
        what: is done, such as ``push``.
        remote: with which it is done.
        progress: is told how far it is.

    Attributes:
        counts: what became of all files so far.
        objects: the bytes of those that were copied, by digest. One that several entries need is one.
    """

    def __init__(self, what: str, remote: Remote, progress: Progress | None):
        self._end = time.monotonic() + SECONDS
        self._name = f"the {what} with {remote}"
        self._progress = progress or (lambda done, total: None)
        self._total = self._seen = 0
        self.counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self.objects: dict[str, int] = {}

    def expect(self, files: int) -> None:
        """Tells how many files there are."""
        self._total = files
        self._progress(0, files)

    def run[T](self, work: Callable[[T], _Counts], items: Iterable[T]) -> None:
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

    def _work_in_time[T](self, work: Callable[[T], _Counts], item: T) -> _Counts:
        if time.monotonic() > self._end:
            said = f"took more than {SECONDS / 60:.0f} min: what was copied stays, and the next one goes on from there"
            raise StoreError(f"{self._name} {said}")
        return work(item)

    def _count(self, future: Future[_Counts]) -> None:
        try:
            self.counts.update(future.result())
        except Refusal as refusal:
            self._refused[refusal.reason] += 1
        if self._total:
            self._seen += 1
            self._progress(self._seen, self._total)

    def freeze(self) -> CopyResult:
        """Returns what was counted by now."""
        counts, objects = self.counts, self.objects
        size = counts["bytes"] + sum(objects.values())
        refused = MappingProxyType(dict(self._refused))
        return CopyResult(counts["entries"], len(objects), size, counts["skipped"], refused)


def push(
    store: Store,
    remote: Remote,
    progress: Progress | None = None,
    *,
    dry_run: bool = False,
    key: SigningKey | None = None,
) -> CopyResult:
    """Copies every entry that the remote does not have, each only after its objects are there.

    An entry that came from elsewhere keeps its signature.

    Args:
        store: in a directory.
        remote: that can be written.
        progress: is told how far it is.
        dry_run: whether to copy nothing and say what would be copied.
        key: signs what this machine made; None if it is to be there unsigned.

    Raises:
        StoreError: if the store has no directory, or its directory is no longer what it was, or if the remote
            cannot be used. What was copied by then stays.
        OSError: if the store cannot be read.
    """
    disk, copying = _require_disk(store), _Copying("push", remote, progress)
    if not remote.writable:
        raise StoreError(f"{remote} can only be read")
    there = remote.list_files(make=True)
    wanted: dict[str, tuple[Artifact, ...]] = {}
    gone: set[str] = set()

    def look(id_: str) -> _Counts:
        entry = disk.entries.get(id_)
        if entry and is_outdated(entry.text):
            raise Refusal(OTHER_FORMAT)
        if entry and _has(remote, there, entry, key):
            return {"skipped": 1}
        if entry:
            wanted[id_] = entry.artifacts
        return {}

    def copy_object(part: Artifact) -> _Counts:
        try:
            content = disk.content(part)
        except Refusal:
            gone.add(part.object)
            raise
        if not dry_run:
            remote.put_object(part, content)
        copying.objects[part.object] = part.size
        return {}

    def copy_entry(id_: str) -> _Counts:
        entry = disk.entries.get(id_)
        # It may have been removed or replaced meanwhile.
        if not entry or entry.artifacts != wanted[id_] or gone.intersection(part.object for part in wanted[id_]):
            return {}
        content = sign_entry(entry, key)
        if not dry_run:
            remote.put(id_, content)
        return {"entries": 1, "bytes": len(content)}

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
    there, sizes = remote.list_files(make=False), disk.sizes()
    wanted = [id_ for id_ in there.entries if not _is_whole(disk, id_, sizes)]
    copying.counts["skipped"] = len(there.entries) - len(wanted)
    # For all of it, or what comes first would make room for what comes last.
    needed = sum(there.entries[id_] or 0 for id_ in wanted)
    _require_room(disk, remote, needed + sum(size or 0 for each, size in there.objects.items() if each not in sizes))
    brought: list[int] = []

    def copy(id_: str) -> _Counts:
        entry = remote.entry(id_)
        if entry is None:
            return {}  # it was removed meanwhile
        if is_outdated(entry.text):
            raise Refusal(OTHER_FORMAT)
        missing = {part.object: part.size for part in entry.artifacts if sizes.get(part.object) != part.size}
        brought.append(len(entry.text) + sum(missing.values()))
        _require_room(disk, remote, sum(brought))
        if not dry_run and disk.save(entry, remote.contents(entry, disk.max_bytes, disk)) is None:
            return {"skipped": 1}  # another process was faster
        copying.objects.update(missing)
        return {"entries": 1, "bytes": len(encode_entry(entry))}

    copying.expect(len(wanted))
    copying.run(copy, wanted)
    return copying.freeze()


def _require_disk(store: Store) -> DiskStore:
    if store.disk is None:
        raise StoreError("there is no directory to share")
    store.disk.directory.require()
    return store.disk


def _has(remote: Remote, there: RemoteFiles, entry: Entry, key: SigningKey | None) -> bool:
    """Returns whether the remote has an entry for the same key with all that it needs, signed if there is a key."""
    size = there.entries.get(entry.id, -1)
    if size == -1:
        return False
    theirs: Entry | None = entry
    if size != len(sign_entry(entry, key)):
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
