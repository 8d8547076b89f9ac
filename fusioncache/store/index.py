"""The index of a remote: its packs, and the entries of each.

It is one file, which each push rewrites, signed like packs::

    fusioncache signed 1 <public key> <signature>
    fusioncache index 1
    {"serial":1764316800000,"packs":[{"digest":...,"entries":["0123456789abcdef.program",...]},...]}

An index can be rebuilt from the packs alone. A wrong one costs compiles or requests, and cannot run code: each pack and
each entry has its own signature.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fusioncache.ir import codec
from fusioncache.process.files import make_folders
from fusioncache.store.entry import DIGEST
from fusioncache.store.files import Refusal, publish, read_private
from fusioncache.store.locks import hold
from fusioncache.store.packs import LARGEST_PACK, PackHead
from fusioncache.store.signing import PUBLIC_KEY, Origin, SigningKey, Trust

LARGEST_INDEX = 64 << 20
MOST_PACKS = 100_000
MOST_AHEAD = 86_400.0
"""Seconds by which the clock of one machine may be ahead of another's."""
OLDER = "an older index than was seen before"

_ACCEPT_SECONDS = 0.5
_HEAD = b"fusioncache index 1\n"
_DIGITS = 16
_SIGNER = re.compile(f"({PUBLIC_KEY.pattern})?")
_SHORT = re.compile(r"[0-9a-f]{16}\.[a-z0-9_-]{1,32}")


@dataclass(frozen=True, slots=True)
class ListedPack:
    """A pack in an index.

    Attributes:
        digest: of the pack.
        size: of its file, in bytes.
        model: of the pack; empty if it is not for one model.
        version: of the fusioncache that made it.
        written: when it was added to the index, in seconds since the epoch.
        used: when a machine that pushes last used one of its entries; ``written`` if none has.
        entries: the shortened names of its entries.
        signer: the public key that signed it; empty if it is unsigned.
    """

    digest: Annotated[str, DIGEST]
    size: Annotated[int, range(LARGEST_PACK + 1)]
    model: str
    version: str
    written: float
    used: float
    entries: tuple[Annotated[str, _SHORT], ...]
    signer: Annotated[str, _SIGNER]


@dataclass(frozen=True, slots=True)
class Index:
    """The packs of a remote.

    Attributes:
        serial: increases with each write: milliseconds since the epoch, or one more than before if that is greater.
        packs: each once.
    """

    serial: int
    packs: tuple[ListedPack, ...]

    def validate(self) -> None:
        """Checks that each pack is listed once.

        Raises:
            ValueError: if one is listed twice, or there are too many.
        """
        if len({pack.digest for pack in self.packs}) != len(self.packs) or len(self.packs) > MOST_PACKS:
            raise ValueError("has a pack twice, or too many")

    def group_by_entry(self) -> Mapping[str, tuple[ListedPack, ...]]:
        """Returns the packs that contain each entry, newest first, by the entry's shortened name."""
        found: dict[str, list[ListedPack]] = {}
        for pack in sorted(self.packs, key=lambda pack: (-pack.written, pack.digest)):
            for entry in pack.entries:
                found.setdefault(entry, []).append(pack)
        return {entry: tuple(packs) for entry, packs in found.items()}


def shorten_entry_id(id_: str) -> str:
    """Returns the shortened name of an entry, as in the index. A collision costs one useless request."""
    digest, _, word = id_.partition(".")
    return f"{digest[:_DIGITS]}.{word}"


def list_pack(head: PackHead, size: int, written: float) -> ListedPack:
    """Returns the listing of a pack for an index.

    Args:
        head: of the pack.
        size: of its file, in bytes.
        written: when it is added to the index, in seconds since the epoch.
    """
    manifest = head.manifest
    entries = tuple(shorten_entry_id(entry.id) for entry in manifest.entries)
    about = (head.digest, size, manifest.model, manifest.version)
    return ListedPack(*about, written, written, entries, head.origin.key)


def encode_index(index: Index, key: SigningKey | None) -> bytes:
    """Returns the content of an index's file, signed if there is a key."""
    content = _HEAD + codec.encode(index)
    return content if key is None else key.sign(content)


def decode_index(content: bytes, trust: Trust) -> Index:
    """Returns the index in a file. Verifies the signature before it reads anything else.

    The result contains only packs whose keys are trusted now, so packs of revoked keys count as missing.

    Raises:
        Refusal: if no trusted key signed it, or it is damaged.
        StoreError: if signatures cannot be verified here.
    """
    if len(content) > LARGEST_INDEX:
        raise Refusal("an index that is too long")
    _, below = trust.open(content)
    if not below.startswith(_HEAD):
        raise Refusal("a damaged index")
    try:
        index = codec.decode(Index, below[len(_HEAD) :], "index")
    except ValueError as error:
        raise Refusal("a damaged index") from error
    return Index(index.serial, tuple(pack for pack in index.packs if trust.accepts(Origin(pack.signer))))


def accept_index(content: bytes, trust: Trust, folder: Path) -> Index:
    """Returns the same as ``decode_index`` if the index is not older than the newest accepted one.

    An accepted index with a serial more than a day ahead does not count: a machine with a wrong clock wrote it.

    Args:
        content: of the file.
        trust: the keys that may have signed it.
        folder: stores the newest index that was accepted from this remote.

    Raises:
        Refusal: if it is older, no trusted key signed it, or it is damaged.
        StoreError: if signatures cannot be verified here.
    """
    index, path, serial = decode_index(content, trust), folder / "accepted", 0
    with suppress(OSError):  # the next index is then not compared with this one
        make_folders(folder)
    with hold(folder / "accepting", _ACCEPT_SECONDS):  # without the lock, the older of two indexes could be stored
        with suppress(OSError, Refusal):  # its key may no longer be trusted
            serial = decode_index(read_private(path, LARGEST_INDEX) or b"", trust).serial
        serial = serial if serial < 1000 * (time.time() + MOST_AHEAD) else 0
        if index.serial < serial:
            raise Refusal(OLDER, f"{index.serial} is before {serial}: push again to make a new one")
        if index.serial > serial:
            with suppress(OSError):
                publish(path, content)
    return index
