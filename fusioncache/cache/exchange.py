"""Copies compiled entries to a remote and back in packs: one pack for each model, and one for all other entries."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from fusioncache import __version__
from fusioncache.cache.packing import Selection, require_disk
from fusioncache.process.settings import REMOTE
from fusioncache.store import Store, StoreError
from fusioncache.store.disk import DiskStore
from fusioncache.store.entry import OTHER_FORMAT, Entry
from fusioncache.store.files import Refusal
from fusioncache.store.index import Index, ListedPack, list_pack, shorten_entry_id
from fusioncache.store.packs import LARGEST_PACK, NothingToPack, open_pack, write_pack
from fusioncache.store.remote import Remote
from fusioncache.store.signing import NOT_TRUSTED, REVOKED, SigningKey, Trust, require_trust
from fusioncache.store.store import get_host

Progress = Callable[[int, int], None]
"""Called with the number of packs done, and the number of all."""

USE_SECONDS = 86_400.0
"""Seconds by which a use must be newer than the index says, for a push without uploads to write the index."""


@dataclass(slots=True)
class CopyResult:
    """Counts what a push or pull copied, or would copy.

    Attributes:
        entries: number of entries.
        packs: number of packs with these.
        bytes: size of the packs.
        skipped: entries that the destination had already.
        claimed: entries that another machine is uploading.
        refused: entries and packs that were left out, by reason.
    """

    entries: int = 0
    packs: int = 0
    bytes: int = 0
    skipped: int = 0
    claimed: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def count_pack(self, entries: int, size: int, refused: Mapping[str, int]) -> None:
        """Adds a pack of this size that brought so many entries, not counting refused ones."""
        self.entries += entries
        self.packs += 1
        self.bytes += size
        self.refused.update(refused)


def push(
    store: Store,
    remote: Remote,
    progress: Progress = lambda done, total: None,
    *,
    dry_run: bool = False,
    key: SigningKey | None = None,
) -> CopyResult:
    """Uploads every entry that the remote's index lacks, in packs that contain all entries that their model needs.

    Machines of one job may push at the same time: the first one uploads each pack. An entry that came from another
    machine keeps its signature.

    Args:
        store: a store with a directory.
        remote: a writable remote.
        progress: called with the progress.
        dry_run: whether to only report what would be uploaded.
        key: signs this machine's entries and the packs; None to leave them unsigned.

    Raises:
        StoreError: if the store has no directory, the remote cannot be used, or nothing can be signed here.
        OSError: if the store cannot be read.
    """
    disk, trust = require_disk(store), _trust_own(key)
    index = _read_writable(remote, trust, make=True)
    there = remote.list_packs() if index.packs else {}
    listed, index = index, Index(index.serial, tuple(pack for pack in index.packs if pack.digest in there))
    known = frozenset(entry for pack in index.packs for entry in pack.entries)
    pushing = _Push(disk, remote, key, trust, known, dry_run=dry_run)
    groups = list(pushing.plan())
    with tempfile.TemporaryDirectory(prefix="fusioncache-push-") as folder:
        for number, (model, ids) in enumerate(groups):
            progress(number, len(groups))
            pushing.upload(model, ids, Path(folder) / "pack")
    used = {shorten_entry_id(id_): file.used / 1e9 for id_, file in disk.entries.list_files().items()}

    def update_packs(packs: tuple[ListedPack, ...]) -> tuple[ListedPack, ...]:
        return tuple(pushing.uploaded.get(pack.digest) or _note_use(pack, used) for pack in packs)

    is_used = any(_note_use(pack, used).used > pack.used + USE_SECONDS for pack in index.packs)
    if not dry_run and (pushing.uploaded or index != listed or is_used):
        remote.update_index(trust, key, update_packs, keeps=pushing.uploaded)
    progress(len(groups), len(groups))
    return pushing.counted


class _Push:
    """Uploads packs with the entries that a remote lacks.

    Args:
        disk: has the entries.
        remote: receives the packs.
        key: signs them; None for no signature.
        trust: trusts what the key signs.
        known: the shortened ids of the remote's entries.
        dry_run: whether to upload nothing.

    Attributes:
        counted: counts of the upload.
        uploaded: the packs, by digest.
    """

    def __init__(
        self, disk: DiskStore, remote: Remote, key: SigningKey | None, trust: Trust, known: Set[str], *, dry_run: bool
    ):
        self._disk, self._remote, self._key, self._trust, self._known = disk, remote, key, trust, known
        self._dry_run = dry_run
        self.counted = CopyResult()
        self.uploaded: dict[str, ListedPack] = {}

    def plan(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yields the model and the entry ids of each pack to write: those with at least one new entry."""
        entries = []
        for entry in self._disk.list_entries():
            if entry.is_outdated:
                self.counted.refused[OTHER_FORMAT] += 1
            else:
                entries.append(entry)
                self.counted.skipped += not self._is_new(entry.id)
        left, selection = {entry.id: entry for entry in entries}, Selection(self._disk, entries)
        for model in selection.list_models():
            own = selection.select(model, exactly=True)
            for entry in own:
                left.pop(entry.id, None)
            if any(self._is_new(entry.id) for entry in own):
                yield from ((model, part) for part in _split(own))
        yield from (("", part) for part in _split(entry for entry in left.values() if self._is_new(entry.id)))

    def upload(self, model: str, ids: Sequence[str], path: Path) -> None:
        """Uploads a pack of these entries, unless another machine is uploading it.

        Args:
            model: the model that needs the entries.
            ids: of the entries.
            path: of a temporary file for the pack.
        """
        new = [id_ for id_ in ids if self._is_new(id_)]
        signer = self._key.public if self._key else ""
        if not self._dry_run and not self._remote.claim(new, signer, _name_owner(self._disk)):
            self.counted.claimed += len(new)
            return
        try:
            written = write_pack(self._disk, ids, path, model=model, version=__version__, key=self._key)
        except NothingToPack as nothing:
            self.counted.refused.update(nothing.refused)
            return
        listed = list_pack(open_pack(path, self._trust), written.bytes, time.time())
        if not self._dry_run:
            self._remote.put_pack(listed.digest, path.read_bytes())
        self.uploaded[listed.digest] = listed
        brought = {*map(shorten_entry_id, new)} & {*listed.entries}
        self.counted.count_pack(len(brought), listed.size, written.refused)

    def _is_new(self, id_: str) -> bool:
        return shorten_entry_id(id_) not in self._known


def pull(
    store: Store, remote: Remote, progress: Progress = lambda done, total: None, *, dry_run: bool = False
) -> CopyResult:
    """Copies every pack with an entry that the store lacks, and verifies each entry by its own signature.

    Args:
        store: a store with a directory.
        remote: to copy from.
        progress: called with the progress.
        dry_run: whether to only report what would be copied.

    Raises:
        StoreError: if the store has no directory, its size limit is too low, or the remote cannot be used. Packs
            copied before the error stay.
        OSError: if the store cannot be written.
    """
    disk, trust = require_disk(store), require_trust()
    if not disk.directory.writable:
        raise StoreError(f"{disk.directory.path} can only be read: give another directory, with --dir for a command")
    index, counted = _find_index(remote, trust, disk), CopyResult()
    if not index.packs:
        remote.require()
    here = {shorten_entry_id(id_) for id_ in disk.entries.list_files() if disk.is_usable(id_, trust)}
    wanted = list(_choose(index, here))
    counted.skipped = len({entry for pack in index.packs for entry in pack.entries} & here)
    _require_room(disk, remote, sum(pack.size for pack in wanted))
    for number, pack in enumerate(wanted):
        progress(number, len(wanted))
        try:
            brought = remote.import_pack(pack, disk, trust, dry_run=dry_run)
            counted.count_pack(brought.entries, pack.size, brought.refused)
        except Refusal as refusal:
            counted.refused[refusal.reason] += 1
    progress(len(wanted), len(wanted))
    return counted


@dataclass(frozen=True, slots=True)
class RemotePruning:
    """Counts what was removed from a remote, or would be.

    Attributes:
        packs: number of packs removed.
        bytes: size of these.
        packs_left: number of packs left.
        bytes_left: size of these.
    """

    packs: int
    bytes: int
    packs_left: int
    bytes_left: int


@dataclass(frozen=True, slots=True)
class Retention:
    """How long packs stay on a remote.

    Attributes:
        unused: how many seconds after its last use by a machine that pushes.
        age: how many seconds after it was written.
        version: the only version of fusioncache whose packs stay; empty for all.
    """

    unused: float = float("inf")
    age: float = float("inf")
    version: str = ""

    def keeps(self, pack: ListedPack, now: float) -> bool:
        """True if a pack stays."""
        is_recent = now - pack.used <= self.unused and now - pack.written <= self.age
        return is_recent and self.version in ("", pack.version)


def prune_remote(
    remote: Remote, retention: Retention, *, dry_run: bool = False, key: SigningKey | None = None
) -> RemotePruning:
    """Removes packs from a remote that are too old, or useless.

    A pack is useless if a newer pack has all its entries, or if a revoked key signed it.

    Other machines may push and load meanwhile. Packs leave the index before they are deleted, and packs that the index
    lacks are added to it, so that a pack just written is not deleted. A load of a deleted pack falls back to compiling.

    Args:
        remote: a writable remote.
        retention: how long packs stay.
        dry_run: whether to only report what would be removed.
        key: signs the new index; None to leave it unsigned.

    Raises:
        StoreError: if the remote cannot be used, or no trusted key signed its index.
    """
    trust, now = _trust_own(key), time.time()
    index = _read_writable(remote, trust, make=False)
    gone = {pack.digest: pack for pack in index.packs if not retention.keeps(pack, now)}
    gone |= _find_covered([pack for pack in index.packs if pack.digest not in gone])
    left = [pack for pack in index.packs if pack.digest not in gone]
    revoked = dict(_find_revoked(remote, index, trust))
    if not dry_run and (index.packs or remote.list_packs()):
        written = remote.update_index(
            trust, key, lambda packs: tuple(pack for pack in packs if pack.digest not in gone)
        )
        left = list(written.packs)
        for digest in (*gone, *revoked):
            remote.remove_pack(digest)
        remote.remove_claims()
    size, size_left = (sum(pack.size for pack in packs) for packs in (gone.values(), left))
    return RemotePruning(len(gone) + len(revoked), size + sum(revoked.values()), len(left), size_left)


def _find_revoked(remote: Remote, index: Index, trust: Trust) -> Iterator[tuple[str, int]]:
    """Yields digest and bytes of packs that a revoked key signed. No index lists them."""
    listed = {pack.digest for pack in index.packs}
    for digest, size in remote.list_packs().items():
        if digest not in listed:
            try:
                remote.read_listing(digest, size, trust)
            except Refusal as refusal:
                if refusal.reason == REVOKED:
                    yield digest, size or 0


def _find_covered(packs: Iterable[ListedPack]) -> dict[str, ListedPack]:
    """Returns the packs all of whose entries are in a newer one."""
    newer: list[frozenset[str]] = []
    covered = {}
    for pack in sorted(packs, key=lambda pack: (-pack.written, pack.digest)):
        entries = frozenset(pack.entries)
        if any(entries <= other for other in newer):
            covered[pack.digest] = pack
        else:
            newer.append(entries)
    return covered


def _trust_own(key: SigningKey | None) -> Trust:
    """Returns the trusted keys, and also trusts what this push writes: with its key, or unsigned without one.

    Raises:
        StoreError: if the key was revoked, or the list of keys cannot be read.
    """
    trust = require_trust()
    if key:
        key.require_trusted()
    return replace(trust, trusted={key.public: key.name, **trust.trusted}) if key else replace(trust, unsigned=True)


def _read_writable(remote: Remote, trust: Trust, *, make: bool) -> Index:
    """Returns the index of a remote that shall be written; an empty one if a new one has to be made from the packs.

    Args:
        remote: has the index.
        trust: the keys that may have signed it.
        make: as for ``Remote.require``.

    Raises:
        StoreError: if the remote cannot be written, is not fusioncache's, or no trusted key signed its index.
    """
    if not remote.writable:
        raise StoreError(f"{remote} can only be read")
    index = _find_index(remote, trust, renews=True)
    if not index.packs:
        remote.require(make=make)
        remote.check_not_foreign()
    return index


def _find_index(remote: Remote, trust: Trust, disk: DiskStore | None = None, *, renews: bool = False) -> Index:
    """Returns the remote's index; an empty one if it has no index.

    Args:
        remote: has the index.
        trust: the keys that may have signed it.
        disk: as for ``Remote.fetch_index``.
        renews: whether an unreadable index counts as none, because a push makes a new one from the packs.

    Raises:
        StoreError: if the remote cannot be used, or no trusted key signed its index.
    """
    try:
        found = remote.fetch_index(trust, disk)
    except Refusal as refusal:
        if renews and refusal.reason != NOT_TRUSTED:
            return Index(0, ())
        raise StoreError(f"the index of {remote} is not used, {refusal}") from None
    return found or Index(0, ())


def _split(entries: Iterable[Entry]) -> Iterator[tuple[str, ...]]:
    """Yields the entry ids in parts small enough for a pack."""
    part, size = list[str](), 0
    for entry in sorted(entries, key=lambda entry: entry.id):
        more = entry.size + 2 * len(entry.text)
        if part and size + more > LARGEST_PACK // 4:
            yield tuple(part)
            part, size = [], 0
        part.append(entry.id)
        size += more
    if part:
        yield tuple(part)


def _name_owner(disk: DiskStore) -> str:
    """Returns an identifier of this machine's store."""
    return hashlib.sha256(f"{get_host()} {disk.directory.path}".encode()).hexdigest()[:16]


def _note_use(pack: ListedPack, used: Mapping[str, float]) -> ListedPack:
    """Returns a pack with the later of its last use in the index and here.

    Args:
        pack: as in the index.
        used: when each entry was used here, in seconds since the epoch, by its shortened id.
    """
    return replace(pack, used=max([pack.used, *(used[entry] for entry in pack.entries if entry in used)]))


def _choose(index: Index, here: set[str]) -> Iterator[ListedPack]:
    """Yields packs, newest first, that have an entry which neither the store nor an earlier pack has."""
    seen = set(here)
    for pack in sorted(index.packs, key=lambda pack: -pack.written):
        if not seen.issuperset(pack.entries):
            seen.update(pack.entries)
            yield pack


def _require_room(disk: DiskStore, remote: Remote, needed: int) -> None:
    if needed > disk.max_bytes:
        raise StoreError(
            f"{remote} has {needed} bytes that are not here, and the store may have {disk.max_bytes}: with "
            f"{REMOTE.name} set to it, what is used is brought when it is used"
        )
