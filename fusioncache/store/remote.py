"""A remote: packs, and one index of them. All content from there is verified before it is used.

The name of a file follows from its content::

    index                                   the list of packs (``index.py``)
    packs/01/0123...                        a pack under its digest (``packs.py``)
    claims/89/89ab...                       a note that a machine is uploading these entries
"""

from __future__ import annotations

import hashlib
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from fusioncache.process.files import make_folders
from fusioncache.store.disk import DiskStore
from fusioncache.store.entry import DIGEST
from fusioncache.store.files import Refusal, StoreError, publish
from fusioncache.store.index import (
    LARGEST_INDEX,
    Index,
    ListedPack,
    accept_index,
    decode_index,
    encode_index,
    list_pack,
)
from fusioncache.store.packs import (
    LARGEST_PACK,
    LONGEST_LINES,
    UnpackResult,
    measure_head,
    open_head,
    open_pack,
    unpack,
)
from fusioncache.store.signing import SigningKey, Trust
from fusioncache.store.transport import Transport

CLAIM_SECONDS = 3600.0
"""How long a claim keeps other machines from uploading the same."""
READ_BACK_SECONDS = (0.05, 0.2)
"""Range of the pause between writing the index and reading it back. Random, so that two writers get out of step."""
TIMES = 8
"""How often a push writes the index, at most, while other writers overwrite it."""

_INDEX = "index"
FETCHED = "index"
"""The file in a store's notes with the index as it was fetched."""
_LONGEST_CLAIM = 1000
_HEAD_BYTES = 64 << 10
"""The first read of a pack. Most manifests are shorter."""


class Remote:
    """Packs below a URL of fsspec: ``s3://``, ``gs://``, ``file://``, ``memory://``, and more.

    ``http://`` and ``https://`` are read-only. No request is sent before the first call of a method.

    Args:
        url: such as ``s3://bucket/folder`` or a path.
    """

    def __init__(self, url: str):
        self._transport = Transport(url)
        self.writable = self._transport.writable
        """Whether the URL's scheme can be written."""
        self._digest = hashlib.sha256(url.rstrip("/").encode(errors="surrogateescape")).hexdigest()[:16]

    def __str__(self) -> str:
        """Returns the URL without parts that may be secret."""
        return self._transport.name

    def find_notes(self, disk: DiskStore) -> Path:
        """Returns the folder of a store's notes on this remote, which may not exist."""
        return disk.directory.path / "remotes" / self._digest

    def fetch_index(self, trust: Trust, disk: DiskStore | None = None) -> Index | None:
        """Returns the index; None if the remote has no index.

        Args:
            trust: the keys that may have signed it.
            disk: the store for the packs. It stores the index for other processes, and refuses one that is older than
                one that it accepted before.

        Raises:
            Refusal: if no trusted key signed it, it is damaged, or older.
            StoreError: if the remote cannot be used.
        """
        content = self.fetch_index_file()
        if content is None or disk is None:
            return None if content is None else decode_index(content, trust)
        with suppress(OSError):  # then the next process fetches it again
            make_folders(self.find_notes(disk))
            publish(self.find_notes(disk) / FETCHED, content)
        return accept_index(content, trust, self.find_notes(disk))

    def fetch_index_file(self) -> bytes | None:
        """Returns the unverified content of the index's file; None if the remote has no index.

        Raises:
            StoreError: if the remote cannot be used.
        """
        return self._transport.fetch_file(_INDEX, LARGEST_INDEX)

    def import_pack(self, pack: ListedPack, disk: DiskStore, trust: Trust, *, dry_run: bool = False) -> UnpackResult:
        """Fetches a pack and stores its entries, for any machine that they are for.

        Args:
            pack: the pack's listing in the index.
            disk: receives the entries.
            trust: the keys whose packs and entries are accepted.
            dry_run: whether to store nothing and only report what would be stored.

        Raises:
            Refusal: if it is missing, cannot be used, or is another pack.
            StoreError: if the remote cannot be used.
            OSError: if the store cannot be written.
        """
        content = self._transport.fetch_file(_pack_path(pack.digest), pack.size, expected=pack.size)
        if content is None or len(content) != pack.size:
            raise Refusal("a pack that is not there" if content is None else "a pack of another length", pack.digest)
        folder = Path(mkdtemp(prefix="fusioncache-"))  # a forked child that ends would remove a TemporaryDirectory
        try:
            path = folder / pack.digest
            path.write_bytes(content)
            try:
                opened = open_pack(path, trust)
            except StoreError as error:
                raise Refusal("a pack that cannot be used", str(error)) from error
            if opened.digest != pack.digest:
                raise Refusal("a pack under another name", pack.digest)
            return unpack(opened, disk, trust, dry_run=dry_run)
        finally:
            rmtree(folder, ignore_errors=True)

    def put_pack(self, digest: str, content: bytes) -> None:
        """Uploads a pack.

        Raises:
            StoreError: if it cannot be written.
        """
        self._transport.put_file(_pack_path(digest), content)

    def remove_pack(self, digest: str) -> None:
        """Removes a pack, if it exists.

        Raises:
            StoreError: if it cannot be removed.
        """
        self._transport.remove_file(_pack_path(digest))

    def require(self, *, make: bool = False) -> None:
        """Checks that the remote's location exists, with any content.

        Args:
            make: whether the last folder may be missing, because writing makes it.

        Raises:
            StoreError: if it does not exist, or does not answer. The message advises what to do.
        """
        self._transport.require(make=make)

    def can_write(self) -> bool:
        """True if files can be written. Writes a file and removes it."""
        if not self.writable:
            return False
        path = f"claims/00/{uuid.uuid4().hex}"
        try:
            self._transport.put_file(path, b"")
            self._transport.remove_file(path)
        except StoreError:
            return False
        return True

    def check_not_foreign(self) -> None:
        """Checks that the location has no foreign file with the name of the index, or has packs.

        Raises:
            StoreError: if it has a foreign one and no packs, or the remote cannot be used.
        """
        content = self.fetch_index_file()
        if content is not None and not content.startswith(b"fusioncache ") and not self.list_packs():
            raise StoreError(f"{self} has a file {_INDEX!r} that is not fusioncache's: give another address")

    def list_packs(self) -> dict[str, int | None]:
        """Returns the size of each pack in bytes by digest, None if the remote does not report it. Ignores other files.

        Raises:
            StoreError: if they cannot be listed.
        """
        return self._transport.sizes("packs", DIGEST)

    def claim(self, ids: Iterable[str], signer: str, owner: str) -> bool:
        """Claims the upload of these entries. Returns False if another owner has claimed it.

        Exact if the remote can create a file exclusively; else two machines may claim at nearly the same time.

        Args:
            ids: of the entries.
            signer: the public key that signs them; empty if none does.
            owner: a word that identifies the store of the entries, so that a failed push can be repeated.

        Raises:
            StoreError: if it cannot be written.
        """
        name = hashlib.sha256("\n".join([signer, *sorted(ids)]).encode()).hexdigest()
        path, claim = f"claims/{name[:2]}/{name}", f"{owner} {time.time():.0f}".encode()
        if self._transport.create_file(path, claim):
            return True
        found = self._transport.fetch_file(path, _LONGEST_CLAIM) or b""
        if found.partition(b" ")[0] != owner.encode() and not _is_over(found):
            return False
        self._transport.put_file(path, claim)
        return True

    def remove_claims(self) -> None:
        """Removes the expired claims.

        Raises:
            StoreError: if they cannot be listed or removed.
        """
        for name in self._transport.sizes("claims", DIGEST):
            path = f"claims/{name[:2]}/{name}"
            if _is_over(self._transport.fetch_file(path, _LONGEST_CLAIM) or b""):
                self._transport.remove_file(path)

    def update_index(
        self,
        trust: Trust,
        key: SigningKey | None,
        change: Callable[[tuple[ListedPack, ...]], tuple[ListedPack, ...]],
        *,
        keeps: Iterable[str] = (),
    ) -> Index:
        """Rewrites the index so that it lists every existing pack of a trusted key, and returns it.

        Writers do not wait for each other. After a pause, each checks that its packs are still in the index, and that
        no packs were added or removed since it listed them; else it writes again. So the last index written is right.

        Args:
            trust: the keys whose packs are listed.
            key: signs the index.
            change: returns the packs to list, given the existing ones.
            keeps: the digests of packs that the final index must list.

        Raises:
            StoreError: if the remote cannot be used, or others write all the time.
        """
        wanted = {*keeps}
        for attempt in range(TIMES):
            before, there = self._find_index(trust), self.list_packs()
            serial = max(int(time.time() * 1000), before.serial + 1)
            index = Index(serial, change(self._list_known(before, there, trust)))
            self._transport.put_file(_INDEX, encode_index(index, key))
            time.sleep(random.uniform(*READ_BACK_SECONDS))
            is_kept = wanted <= {pack.digest for pack in self._find_index(trust).packs}
            listed, after = {pack.digest for pack in index.packs}, self.list_packs().keys()
            if is_kept and (attempt == TIMES - 1 or listed <= after <= there.keys()):
                return index
        raise StoreError(f"{self} has an index that others write all the time: push again")

    def _find_index(self, trust: Trust) -> Index:
        """Returns the index; an empty one if it is missing or refused."""
        try:
            found = self.fetch_index(trust)
        except Refusal:
            found = None
        return found or Index(0, ())

    def _list_known(self, index: Index, there: Mapping[str, int | None], trust: Trust) -> tuple[ListedPack, ...]:
        """Returns the existing packs: with their listing in the index, or else with one made from their manifest."""
        known = {pack.digest: pack for pack in index.packs if pack.digest in there}
        for digest in there.keys() - known.keys():
            try:
                known[digest] = self.read_listing(digest, there[digest], trust)
            except Refusal:
                continue  # each reader would refuse it
        return tuple(sorted(known.values(), key=lambda pack: (pack.written, pack.digest)))

    def read_listing(self, digest: str, size: int | None, trust: Trust) -> ListedPack:
        """Returns the listing of a pack for an index, made from its manifest.

        Args:
            digest: of the pack.
            size: of its file in bytes; None if unknown.
            trust: the keys whose packs are listed.

        Raises:
            Refusal: if it is not a pack, is another pack, or no trusted key signed it.
            StoreError: if the remote cannot be used.
        """
        path = _pack_path(digest)
        content = self._transport.fetch_file(path, _HEAD_BYTES) or b""
        start = measure_head(content[:LONGEST_LINES])
        if start > len(content):
            content = self._transport.fetch_file(path, start) or b""
        head = open_head(content[:start], trust)
        whole = start + head.manifest.size
        if head.digest != digest or size not in (None, whole) or whole > LARGEST_PACK:
            raise Refusal("a pack under another name", digest)
        return list_pack(head, whole, time.time())


def _is_over(claim: bytes) -> bool:
    """True if a claim has expired or is invalid."""
    since = claim.decode(errors="replace").rpartition(" ")[2]
    # A claim from the future is from a machine with a wrong clock.
    return not since.isdecimal() or not -CLAIM_SECONDS < time.time() - int(since) < CLAIM_SECONDS


def _pack_path(digest: str) -> str:
    return f"packs/{digest[:2]}/{digest}"
