"""Entries: the artifacts of a key. An entry is one self-describing file.

The name of an entry is the digest of its key and a word: the backend that compiled it, or one of these slots:

- ``program`` and more: programs. Values read beside the key may differ between processes, so a key can have several.
- ``sizes``: the sizes that regions of one skeleton had.
- ``family`` and more: families, the common part of programs at several lengths. A form may have several.
- ``splits``: the operations that Thunder supports in Dynamo's graphs.
- ``verified``: marks of templates that were verified in a Thunder that was not tried.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated

from fusioncache.ir import Key, codec
from fusioncache.ir.codec import is_text
from fusioncache.ir.keys import read_key
from fusioncache.store.files import Refusal
from fusioncache.store.signing import Origin, SigningKey, Trust, split_origin

PROGRAM_FORMAT = 6
"""Of programs' keys, texts and reads. Programs of another format are not shown, copied or compared."""
PROGRAM_SLOTS = ("program", "program-1", "program-2", "program-3")
"""In the order of lookup."""
SIZES_SLOT = "sizes"
SPLITS_SLOT = "splits"
VERIFIED_SLOT = "verified"
FAMILY_SLOTS = ("family", "family-1", "family-2", "family-3")
"""In the order of lookup."""


def is_program(backend: str) -> bool:
    """True if an entry with this word is a program."""
    return backend in PROGRAM_SLOTS


def is_family(backend: str) -> bool:
    """True if an entry with this word is a family."""
    return backend in FAMILY_SLOTS


def is_compiled(backend: str) -> bool:
    """True if an entry with this word has the artifacts that a backend compiled from a graph."""
    return backend not in (*PROGRAM_SLOTS, *FAMILY_SLOTS, SIZES_SLOT, SPLITS_SLOT, VERIFIED_SLOT)


FORMAT = 1
LARGEST = 1 << 26
"""Maximum bytes of an entry's file, which is mostly the text of the key."""

MOST_BYTES = 256 << 20
"""Maximum bytes of an entry with its artifacts, all of which are in memory. Artifacts usually have some megabytes."""
MOST_ARTIFACTS = 1000

REFUSED = "refused"
"""The artifact of an entry without loadable artifacts: its content is the reason."""

OTHER_FORMAT = "an entry of another format"

DIGEST = re.compile(r"[0-9a-f]{64}")
_BACKEND = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
ID = re.compile(rf"{DIGEST.pattern}\.{_BACKEND.pattern}")
_HEADER = re.compile(rb"fusioncache entry (\d{1,9}) ([0-9a-f]{64})\n")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a backend loads an executable from.

    Attributes:
        name: the backend's name for it.
        object: SHA-256 of its content.
        size: of its content, in bytes.
    """

    name: str
    object: Annotated[str, DIGEST]
    size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """The artifacts of one key by one backend, with their description.

    Attributes:
        digest: of the key.
        backend: which made the artifacts; or a slot.
        text: the whole text of the key. Keys are equal if their texts are, not their digests.
        ingredients: name and digest of each ingredient of the key.
        artifacts: sorted by name.
        name: of the template, for people.
        created: seconds since the epoch.
        seconds: that it took to compile.
        pid: the process that stored it.
        host: the machine of that process.
        origin: its signer; None if this machine made it. Stored in the line above the entry only.
    """

    digest: Annotated[str, DIGEST]
    backend: Annotated[str, _BACKEND]
    text: str
    ingredients: tuple[tuple[str, str], ...]
    artifacts: tuple[Artifact, ...]
    name: str
    created: float
    seconds: float
    pid: int
    host: str
    origin: Origin | None = None

    @property
    def id(self) -> str:
        """The name of its file."""
        return f"{self.digest}.{self.backend}"

    @property
    def texts(self) -> Mapping[str, str]:
        """The ingredients of its key, name to text; empty if the text is not a key."""
        with suppress(ValueError):
            return read_key(self.text)
        return {}

    @property
    def is_outdated(self) -> bool:
        """True if it is a program or a family of another format."""
        return self.texts.get("program format", str(PROGRAM_FORMAT)) != str(PROGRAM_FORMAT)

    @property
    def size(self) -> int:
        """The bytes of its artifacts."""
        return sum(artifact.size for artifact in self.artifacts)


def make_entry_id(key: Key, backend: str) -> str:
    """Returns the name of the entry for a key.

    Raises:
        Refusal: if the key or the backend's name is invalid.
    """
    if not DIGEST.fullmatch(key.digest):
        raise Refusal("a key whose digest is no SHA-256")
    if not _BACKEND.fullmatch(backend):
        raise Refusal("a backend whose name is no plain word", repr(backend))
    # A lone surrogate cannot be encoded, and two of them would be decoded as one character.
    if not is_text(key.text):
        raise Refusal("a key whose text is no valid Unicode")
    return f"{key.digest}.{backend}"


def encode_entry(entry: Entry) -> bytes:
    """Returns the content of an entry's file: a line with format and checksum, then the fields as JSON.

    If the entry came from another machine, the line of its origin comes first.

    Raises:
        ValueError: if the entry could not be decoded again.
    """
    body = codec.encode(replace(entry, origin=None))
    codec.decode(Entry, body, "entry")
    line = entry.origin.line if entry.origin else b""
    return b"%sfusioncache entry %d %s\n%s" % (line, FORMAT, hashlib.sha256(body).hexdigest().encode(), body)


def decode_entry(content: bytes, id_: str) -> Entry:
    """Returns the entry in the file of this name. Does not check its origin: see ``Trust``.

    Raises:
        Refusal: if it is damaged, of another format, or another entry.
    """
    origin, content = split_origin(content)
    header = _HEADER.match(content)
    if header is None:
        raise Refusal("a damaged entry")
    if int(header[1]) != FORMAT:
        raise Refusal(OTHER_FORMAT)
    body = content[header.end() :]
    if hashlib.sha256(body).hexdigest().encode() != header[2]:
        raise Refusal("a damaged entry")
    try:
        entry = codec.decode(Entry, body, "entry")
    except ValueError as error:
        raise Refusal("a damaged entry") from error
    if entry.origin is not None:
        raise Refusal("a damaged entry")
    if entry.id != id_:
        raise Refusal("an entry in the place of another", id_)
    return replace(entry, origin=origin)


def open_entry(content: bytes, id_: str, trust: Trust) -> Entry:
    """Returns the entry in a file from another machine. Verifies the signature before it reads anything else.

    Raises:
        Refusal: if it is too long, its signature is wrong or not trusted, or it is not the entry that was signed under
            this name.
        StoreError: if signatures cannot be verified here.
    """
    if len(content) > LARGEST:
        raise Refusal("an entry that is too long", id_)
    origin, below = trust.open(content)
    entry = replace(decode_entry(below, id_), origin=origin)
    if hashlib.sha256(entry.text.encode()).hexdigest() != entry.digest:
        # On disk it would occupy the place of the right entry.
        raise Refusal("an entry whose key has another digest", id_)
    names = [artifact.name for artifact in entry.artifacts]
    if encode_entry(entry) != origin.line + below or names != sorted({*names}):
        # It could not be passed on, because the signature covers exactly these bytes.
        raise Refusal("an entry that is written in another way", id_)
    return entry


def sign_entry(entry: Entry, key: SigningKey | None) -> bytes:
    """Returns the content of an entry's file for another machine. Signs it if this machine made it and there is a key.

    Raises:
        Refusal: if it came unsigned: this user's signature would claim that it was made here.
        StoreError: if it cannot be signed here.
    """
    content = encode_entry(entry)
    if key is None or (entry.origin is not None and entry.origin.key):
        return content
    if entry.origin is not None:
        raise Refusal("an entry that came here unsigned", entry.id)
    return key.sign(content)


@dataclass(frozen=True, slots=True, eq=False)
class StoredArtifacts(Mapping[str, bytes]):
    """Artifacts by the backend's names for them, and their cost. Equal to any mapping with the same artifacts.

    Attributes:
        artifacts: by name.
        seconds: that the compile took in its process. A load saves them.
        is_foreign: whether they came from another machine.
    """

    artifacts: Mapping[str, bytes]
    seconds: float = 0.0
    is_foreign: bool = False

    def __getitem__(self, name: str) -> bytes:
        return self.artifacts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.artifacts)

    def __len__(self) -> int:
        return len(self.artifacts)
