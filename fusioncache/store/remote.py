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
from collections.abc import Callable, Iterable

from fusioncache.store.entry import DIGEST
from fusioncache.store.files import Refusal, StoreError
from fusioncache.store.index import LARGEST_INDEX, Index, ListedPack, decode_index, encode_index, list_pack
from fusioncache.store.packs import LARGEST_PACK, LONGEST_LINES, measure_head, open_head
from fusioncache.store.signing import SigningKey, Trust
from fusioncache.store.transport import Transport

CLAIM_SECONDS = 3600.0
"""How long a machine that uploads keeps others from uploading the same."""
READ_BACK_SECONDS = (0.05, 0.2)
"""Between writing the index and looking whether it is still there: random, so that two writers do not go on in step."""
TIMES = 8
"""How often the index is written while other writers write theirs."""

_INDEX = "index"
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

    def __str__(self) -> str:
        """Returns the URL without what may be secret in it."""
        return self._transport.name

    @property
    def writable(self) -> bool:
        """Whether anything could be put there, as far as the URL says."""
        return self._transport.writable

    def fetch_index(self, trust: Trust) -> tuple[Index, bytes] | None:
        """Returns the index and its file; None if there is none.

        Raises:
            Refusal: if no trusted key signed it, or it is damaged.
            StoreError: if the remote cannot be used.
        """
        content = self._transport.fetch_file(_INDEX, LARGEST_INDEX)
        return None if content is None else (decode_index(content, trust), content)

    def fetch_pack(self, pack: ListedPack) -> bytes:
        """Returns the file of a pack. Nothing of it was verified.

        Raises:
            Refusal: if it is not there, or has another length.
            StoreError: if the remote cannot be used.
        """
        content = self._transport.fetch_file(_pack_path(pack.digest), pack.size, expected=pack.size)
        if content is None or len(content) != pack.size:
            raise Refusal("a pack that is not there" if content is None else "a pack of another length", pack.digest)
        return content

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

    def require(self) -> None:
        """Does nothing if the place is there, whatever is in it.

        Raises:
            StoreError: if it is not there, or gives no answer. The message says what to do.
        """
        self._transport.require()

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

    def list_packs(self, *, make: bool = False) -> dict[str, int | None]:
        """Returns the bytes of each pack by its digest, None where the remote does not say. Other files are not ours.

        Where nothing is, the place has to be, or a wrong address would be an empty remote.

        Args:
            make: whether it is going to be written.

        Raises:
            StoreError: if the place is not there, or cannot be listed.
        """
        found = self._transport.sizes("packs", DIGEST)
        if not found:
            self._transport.require(make=make)
        return found

    def claim(self, ids: Iterable[str]) -> bool:
        """Says to others that these entries are being uploaded. Returns False if another machine has said so.

        Exact where the remote can create a file only if there is none; elsewhere two may claim within a moment.

        Raises:
            StoreError: if it cannot be written.
        """
        name = hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()
        path, token = f"claims/{name[:2]}/{name}", f"{uuid.uuid4().hex} {time.time():.0f}"
        if self._transport.create_file(path, token.encode()):
            return True
        content = self._transport.fetch_file(path, _LONGEST_CLAIM) or b""
        if content == token.encode():
            return True
        if not _is_over(content):
            return False
        self._transport.put_file(path, token.encode())  # that machine was killed
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

        Writers do not wait for each other: each looks whether its own packs are still in the index a moment later.

        Args:
            trust: says whose packs are listed.
            key: signs the index.
            change: returns the packs to list, of those that there are.
            keeps: the digests of packs that have to be in it in the end.

        Raises:
            StoreError: if the remote cannot be used, or others write all the time.
        """
        wanted = {*keeps}
        for _ in range(TIMES):
            before = self._find_index(trust)
            serial = max(int(time.time() * 1000), before.serial + 1)
            index = Index(serial, change(self._list_known(before, trust)))
            self._transport.put_file(_INDEX, encode_index(index, key))
            time.sleep(random.uniform(*READ_BACK_SECONDS))
            if wanted <= {pack.digest for pack in self._find_index(trust).packs}:
                return index
        raise StoreError(f"{self} has an index that others write all the time: push again")

    def _find_index(self, trust: Trust) -> Index:
        """Returns the index; an empty one if there is none that can be used."""
        try:
            found = self.fetch_index(trust)
        except Refusal:
            found = None
        return found[0] if found else Index(0, ())

    def _list_known(self, index: Index, trust: Trust) -> tuple[ListedPack, ...]:
        """Returns the packs of an index that are there, and those that are there and not in it."""
        there = self.list_packs(make=True)
        known = {pack.digest: pack for pack in index.packs if pack.digest in there}
        for digest in there.keys() - known.keys():
            try:
                known[digest] = self._read_listing(digest, there[digest], trust)
            except Refusal:
                continue  # no reader would use it
        return tuple(sorted(known.values(), key=lambda pack: (pack.written, pack.digest)))

    def _read_listing(self, digest: str, size: int | None, trust: Trust) -> ListedPack:
        """Returns what an index says of a pack, from its manifest."""
        path = _pack_path(digest)
        content = self._transport.fetch_file(path, _HEAD_BYTES) or b""
        start = measure_head(content[:LONGEST_LINES])
        if start > len(content):
            content = self._transport.fetch_file(path, start) or b""
        head = open_head(content[:start], trust)
        whole = start + head.manifest.size
        if head.digest != digest or size not in (None, whole) or whole > LARGEST_PACK:
            raise Refusal("a pack under another name", digest)
        return list_pack(digest, whole, head.manifest, time.time())


def _is_over(claim: bytes) -> bool:
    """Returns whether the machine that claimed has had its time."""
    since = claim.decode(errors="replace").rpartition(" ")[2]
    return not since.isdecimal() or time.time() - int(since) >= CLAIM_SECONDS


def _pack_path(digest: str) -> str:
    return f"packs/{digest[:2]}/{digest}"
