"""What a remote has: packs, and one index of them. Whatever comes from there is verified before it is read.

The names of files follow from what is in them::

    index                                   which packs there are (``index.py``)
    packs/01/0123...                        a pack under its digest (``packs.py``)
    claims/89/89ab...                       that a machine uploads these entries just now
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
"""How long a machine that uploads keeps others from uploading the same."""
READ_BACK_SECONDS = (0.05, 0.2)
"""Between writing the index and looking whether it is still there: random, so that two writers do not go on in step."""
TIMES = 8
"""How often the index is written while other writers write theirs."""

_INDEX = "index"
FETCHED = "index"
"""The note of a store that has the index as it was fetched."""
_LONGEST_CLAIM = 1000
_HEAD_BYTES = 64 << 10
"""What is read of a pack at first: most manifests are shorter."""


class Remote:
    """Packs below a URL of fsspec: ``s3://``, ``gs://``, ``file://``, ``memory://``, and more.

    What is at ``http://`` and ``https://`` can be read only. Nothing is asked before the first call of a method.

    Args:
        url: such as ``s3://bucket/folder`` or a path.
    """

    def __init__(self, url: str):
        self._transport = Transport(url)
        self.writable = self._transport.writable
        """Whether anything could be put there, as far as the URL says."""
        self._digest = hashlib.sha256(url.rstrip("/").encode(errors="surrogateescape")).hexdigest()[:16]

    def __str__(self) -> str:
        """Returns the URL without what may be secret in it."""
        return self._transport.name

    def find_notes(self, disk: DiskStore) -> Path:
        """Returns the folder in which a store keeps what it knows of this remote, whether it is there or not."""
        return disk.directory.path / "remotes" / self._digest

    def fetch_index(self, trust: Trust, disk: DiskStore | None = None) -> Index | None:
        """Returns the index; None if the remote has no index.

        Args:
            trust: the keys that may have signed it.
            disk: the store that brings packs. It keeps the index for other processes, and refuses one that is older
                than one that it accepted before.

        Raises:
            Refusal: if no trusted key signed it, it is damaged, or older.
            StoreError: if the remote cannot be used.
        """
        content = self.fetch_index_file()
        if content is None or disk is None:
            return None if content is None else decode_index(content, trust)
        with suppress(OSError):  # the next process asks again then
            make_folders(self.find_notes(disk))
            publish(self.find_notes(disk) / FETCHED, content)
        return accept_index(content, trust, self.find_notes(disk))

    def fetch_index_file(self) -> bytes | None:
        """Returns the file of the index, of which nothing is verified; None if the remote has no index.

        Raises:
            StoreError: if the remote cannot be used.
        """
        return self._transport.fetch_file(_INDEX, LARGEST_INDEX)

    def bring(self, pack: ListedPack, disk: DiskStore, trust: Trust, *, dry_run: bool = False) -> UnpackResult:
        """Brings the entries of a pack into a store, for whichever machine they are.

        Args:
            pack: as the index has it.
            disk: gets the entries.
            trust: the keys whose packs and entries are used.
            dry_run: whether to bring nothing and say what would be brought.

        Raises:
            Refusal: if it is not there, or not the pack of this name.
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
        """Puts a pack there.

        Raises:
            StoreError: if it cannot be written.
        """
        self._transport.put_file(_pack_path(digest), content)

    def remove_pack(self, digest: str) -> None:
        """Removes a pack, if it is there.

        Raises:
            StoreError: if it cannot be removed.
        """
        self._transport.remove_file(_pack_path(digest))

    def require(self, *, make: bool = False) -> None:
        """Does nothing if the place is there, whatever is in it.

        Args:
            make: whether writing there would make its last folder.

        Raises:
            StoreError: if it is not there, or gives no answer. The message says what to do.
        """
        self._transport.require(make=make)

    def can_write(self) -> bool:
        """Returns whether files can be put there: one is, and is removed."""
        if not self.writable:
            return False
        path = f"claims/00/{uuid.uuid4().hex}"
        try:
            self._transport.put_file(path, b"")
            self._transport.remove_file(path)
        except StoreError:
            return False
        return True

    def require_ours(self) -> None:
        """Does nothing if what is there was put there by fusioncache, or if it has neither an index nor packs.

        Raises:
            StoreError: if there is another file of the index's name, or the remote cannot be used.
        """
        content = self.fetch_index_file()
        if content is not None and not content.startswith(b"fusioncache ") and not self.list_packs():
            raise StoreError(f"{self} has a file {_INDEX!r} that is not fusioncache's: give another address")

    def list_packs(self) -> dict[str, int | None]:
        """Returns the bytes of each pack by its digest, None where the remote does not say. Other files are not ours.

        Raises:
            StoreError: if they cannot be listed.
        """
        return self._transport.sizes("packs", DIGEST)

    def claim(self, ids: Iterable[str], signer: str, owner: str) -> bool:
        """Says to others that these entries are being uploaded. Returns False if another one has said so.

        Exact where the remote can create a file only if there is none; elsewhere two may claim within a moment.

        Args:
            ids: of the entries.
            signer: the public key that signs them; empty if none does.
            owner: a word for the store that they are in. A push that failed is repeated under the same one.

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
        """Removes the claims that are over.

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
        """Writes the index anew, so that it has every pack that is there, as far as a trusted key signed it.

        Writers do not wait for each other: each looks a moment later whether its own packs are still in the index, and
        whether others came or went since it listed them. So what the last one writes is what is there.

        Args:
            trust: says whose packs are listed.
            key: signs the index.
            change: returns the packs to list, of those that there are.
            keeps: the digests of packs that have to be in it in the end.

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
        """Returns the index; an empty one if there is none that can be used."""
        try:
            found = self.fetch_index(trust)
        except Refusal:
            found = None
        return found or Index(0, ())

    def _list_known(self, index: Index, there: Mapping[str, int | None], trust: Trust) -> tuple[ListedPack, ...]:
        """Returns the packs of an index that are there, and those that are there and not in it."""
        known = {pack.digest: pack for pack in index.packs if pack.digest in there}
        for digest in there.keys() - known.keys():
            try:
                known[digest] = self.read_listing(digest, there[digest], trust)
            except Refusal:
                continue  # no reader would use it
        return tuple(sorted(known.values(), key=lambda pack: (pack.written, pack.digest)))

    def read_listing(self, digest: str, size: int | None, trust: Trust) -> ListedPack:
        """Returns what an index says of a pack, from its manifest.

        Args:
            digest: of the pack.
            size: of its file, if that is known.
            trust: the keys whose packs are listed.

        Raises:
            Refusal: if it is none, another one, or no trusted key signed it.
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
    """Returns whether the machine that claimed has had its time."""
    since = claim.decode(errors="replace").rpartition(" ")[2]
    # A claim from the future is of a machine whose clock was wrong.
    return not since.isdecimal() or not -CLAIM_SECONDS < time.time() - int(since) < CLAIM_SECONDS


def _pack_path(digest: str) -> str:
    return f"packs/{digest[:2]}/{digest}"
