"""Brings what was compiled to a remote and from there, in packs: one for each model, one for all else."""

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
"""Is told how many packs were dealt with, and of how many."""

USE_SECONDS = 86_400.0
"""A push that uploads nothing writes the index if that lacks a use of so many seconds."""


@dataclass(slots=True)
class CopyResult:
    """Counts what is brought, or would be.

    Attributes:
        entries: how many.
        packs: the files that they came in.
        bytes: of the packs.
        skipped: entries that were there already.
        claimed: entries that another machine uploads just now.
        refused: entries and packs that were left out, by reason.
    """

    entries: int = 0
    packs: int = 0
    bytes: int = 0
    skipped: int = 0
    claimed: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def count_pack(self, entries: int, size: int, refused: Mapping[str, int]) -> None:
        """Adds a pack of this size that brought so many entries, without those that were refused."""
        self.entries += entries
        self.packs += 1
        self.bytes += size
        self.refused.update(refused)


def push(
    store: Store,
    remote: Remote,
    progress: Progress | None = None,
    *,
    dry_run: bool = False,
    key: SigningKey | None = None,
) -> CopyResult:
    """Uploads every entry that the index of a remote does not have, in a pack with all that its model needs.

    Machines of one job may push at once: each pack is uploaded by the first one. An entry that came from elsewhere
    keeps its signature.

    Args:
        store: in a directory.
        remote: that can be written.
        progress: is told how far it is.
        dry_run: whether to upload nothing and say what would be uploaded.
        key: signs what this machine made, and the packs; None if they are to be there unsigned.

    Raises:
        StoreError: if the store has no directory, the remote cannot be used, or nothing can be signed here.
        OSError: if the store cannot be read.
    """
    disk, trust = require_disk(store), _trust_own(key)
    if not remote.writable:
        raise StoreError(f"{remote} can only be read")
    index = _find_index(remote, trust, renews=True)
    if not index.packs:
        remote.require(make=True)
        remote.require_ours()
    there = remote.list_packs() if index.packs else {}
    listed, index = index, Index(index.serial, tuple(pack for pack in index.packs if pack.digest in there))
    known = frozenset(entry for pack in index.packs for entry in pack.entries)
    pushing = _Push(disk, remote, key, trust, known, dry_run=dry_run)
    groups = list(pushing.plan())
    with tempfile.TemporaryDirectory(prefix="fusioncache-push-") as folder:
        for number, (model, ids) in enumerate(groups):
            if progress:
                progress(number, len(groups))
            pushing.upload(model, ids, Path(folder) / "pack")
    change = _Listing(pushing.uploaded, dict(_find_uses(disk)))
    if not dry_run and (pushing.uploaded or index != listed or change.has_news(index.packs)):
        remote.update_index(trust, key, change, keeps=pushing.uploaded)
    if progress:
        progress(len(groups), len(groups))
    return pushing.counted


class _Push:
    """Uploads packs of what a remote lacks.

    Args:
        disk: has the entries.
        remote: gets the packs.
        key: signs them, if there is one.
        trust: trusts what the key signs.
        known: the shortened names of the entries that the remote has.
        dry_run: whether to upload nothing.

    Attributes:
        counted: what was uploaded.
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
        """Yields the model and the entries of each pack that is to be written: those with an entry that is new."""
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
        """Uploads a pack of these entries, unless another machine is at it.

        Args:
            model: that they are for.
            ids: of the entries.
            path: for the file of the pack.
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


def pull(store: Store, remote: Remote, progress: Progress | None = None, *, dry_run: bool = False) -> CopyResult:
    """Brings every pack that has an entry which the store does not have, each entry verified by its own signature.

    Args:
        store: in a directory.
        remote: to copy from.
        progress: is told how far it is.
        dry_run: whether to bring nothing and say what would be brought.

    Raises:
        StoreError: if the store has no directory, may not become as large, or the remote cannot be used. What was
            brought by then stays.
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
        if progress:
            progress(number, len(wanted))
        try:
            brought = remote.bring(pack, disk, trust, dry_run=dry_run)
            counted.count_pack(brought.entries, pack.size, brought.refused)
        except Refusal as refusal:
            counted.refused[refusal.reason] += 1
    if progress:
        progress(len(wanted), len(wanted))
    return counted


@dataclass(frozen=True, slots=True)
class RemotePruning:
    """What was removed from a remote, or would be.

    Attributes:
        packs: how many.
        bytes: of them.
        packs_left: how many stayed.
        bytes_left: of them.
    """

    packs: int
    bytes: int
    packs_left: int
    bytes_left: int


@dataclass(frozen=True, slots=True)
class Retention:
    """How long packs stay on a remote.

    Attributes:
        unused: seconds since one was last used by a machine that pushes.
        age: seconds since one was written.
        version: of fusioncache, whose packs alone stay; empty for all.
    """

    unused: float = float("inf")
    age: float = float("inf")
    version: str = ""

    def keeps(self, pack: ListedPack, now: float) -> bool:
        """Returns whether a pack stays."""
        is_recent = now - pack.used <= self.unused and now - pack.written <= self.age
        return is_recent and self.version in ("", pack.version)


def prune_remote(
    remote: Remote, retention: Retention, *, dry_run: bool = False, key: SigningKey | None = None
) -> RemotePruning:
    """Removes packs from a remote that have had their time, or are of no use.

    Of no use are those of which a newer one has every entry, and those that a revoked key signed.

    Others may push and load meanwhile. A pack leaves the index first, and one that is not in the index yet is listed,
    so that none goes which was just written. A load that comes too late compiles.

    Args:
        remote: that can be written.
        retention: how long packs stay.
        dry_run: whether to remove nothing and say what would be removed.
        key: signs the new index; None if that is to be there unsigned.

    Raises:
        StoreError: if the remote cannot be used, or no trusted key signed its index.
    """
    if not remote.writable:
        raise StoreError(f"{remote} can only be read")
    trust, now = _trust_own(key), time.time()
    index = _find_index(remote, trust, renews=True)
    if not index.packs:
        remote.require()
        remote.require_ours()
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
    """Yields digest and bytes of packs that a revoked key signed. They are in no index."""
    listed = {pack.digest for pack in index.packs}
    for digest, size in remote.list_packs().items():
        if digest not in listed:
            try:
                remote.read_listing(digest, size, trust)
            except Refusal as refusal:
                if refusal.reason == REVOKED:
                    yield digest, size or 0


def _find_covered(packs: Iterable[ListedPack]) -> dict[str, ListedPack]:
    """Returns the packs of which a newer one has every entry."""
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
    """Returns which keys are trusted, and with them what a push with this key writes, or one without.

    Raises:
        StoreError: if the key was revoked, or the list of keys cannot be read.
    """
    trust = require_trust()
    if key:
        key.require_trusted()
    return replace(trust, trusted={key.public: key.name, **trust.trusted}) if key else replace(trust, unsigned=True)


def _find_index(remote: Remote, trust: Trust, disk: DiskStore | None = None, *, renews: bool = False) -> Index:
    """Returns the index; an empty index if the remote has none.

    Args:
        remote: that has it.
        trust: the keys that may have signed it.
        disk: of ``Remote.fetch_index``.
        renews: whether one that no reader can use counts as none: a push makes another one from the packs.

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
    """Yields the entries in parts that are not too large for a pack."""
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
    """Returns a word for a store of this machine."""
    return hashlib.sha256(f"{get_host()} {disk.directory.path}".encode()).hexdigest()[:16]


def _find_uses(disk: DiskStore) -> Iterator[tuple[str, float]]:
    """Yields the shortened name of each entry, and when it was last used, in seconds since the epoch."""
    for id_, file in disk.entries.list_files().items():
        yield shorten_entry_id(id_), file.used / 1e9


@dataclass(frozen=True, slots=True)
class _Listing:
    """Adds packs to an index, and notes which of those in it are used here."""

    uploaded: Mapping[str, ListedPack]
    used: Mapping[str, float]

    def __call__(self, packs: tuple[ListedPack, ...]) -> tuple[ListedPack, ...]:
        return tuple(self.uploaded.get(pack.digest) or self._note_use(pack) for pack in packs)

    def has_news(self, packs: tuple[ListedPack, ...]) -> bool:
        """Returns whether a pack was used here long after the index says that it was."""
        return any(self._note_use(pack).used > pack.used + USE_SECONDS for pack in packs)

    def _note_use(self, pack: ListedPack) -> ListedPack:
        used = max((self.used[entry] for entry in pack.entries if entry in self.used), default=0.0)
        return replace(pack, used=max(pack.used, used))


def _choose(index: Index, here: set[str]) -> Iterator[ListedPack]:
    """Yields packs, the newest first, each with an entry that neither the store nor an earlier one has."""
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
