"""Packs: one file with entries and their objects, for a machine without a store or a remote.

A pack begins with the line of its signature (``signing.py``), a line with the length of its manifest, and the manifest
as JSON. The contents of the entries' files and of the objects follow, in the manifest's order and without gaps::

    fusioncache signed 1 <public key> <signature>
    fusioncache pack 1 <bytes of the manifest>
    {"model":...,"version":...,"environments":[...],"entries":[...],"objects":[...]}<entry><entry><object>...

The signature covers the manifest, which has the SHA-256 of each entry and object: the digest of the manifest is that of
the pack. Packs of the same entries are equal, byte for byte. A pack contains no paths and no compression, so that a
reader chooses where it writes, and reads no more bytes than the manifest declares.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

from fusioncache.ir import codec
from fusioncache.ir.keys import MACHINE
from fusioncache.process.files import remove
from fusioncache.store.disk import DiskStore
from fusioncache.store.entry import (
    DIGEST,
    ID,
    LARGEST,
    MOST_ARTIFACTS,
    MOST_BYTES,
    OTHER_FORMAT,
    Entry,
    open_entry,
    sign_entry,
)
from fusioncache.store.files import TEMPORARY, Refusal, StoreError
from fusioncache.store.signing import Origin, SigningKey, Trust, read_trust, split_origin

FORMAT = 1
MOST_ENTRIES = 100_000
LARGEST_MANIFEST = 64 << 20
LARGEST_PACK = 1 << 30
"""Maximum bytes of a pack on a remote. More entries are split into several packs."""

_HEAD = re.compile(rb"fusioncache pack (\d{1,9}) (\d{1,9})\n")
LONGEST_LINES = 512
"""Maximum bytes of both lines above the manifest."""
_DAMAGED = "the pack is damaged"


@dataclass(frozen=True, slots=True)
class PackedObject:
    """An object in a pack.

    Attributes:
        digest: SHA-256 of its content, which is its name.
        size: of its content, in bytes.
    """

    digest: Annotated[str, DIGEST]
    size: Annotated[int, range(MOST_BYTES + 1)]


@dataclass(frozen=True, slots=True)
class PackedEntry:
    """An entry in a pack.

    Attributes:
        id: its name.
        digest: SHA-256 of the content of its file.
        size: of the content of its file, in bytes.
        name: of the model or the template, for people.
        seconds: that compiling or tracing it took.
        environment: the index of its environment in the manifest.
        objects: the indexes of its objects in the manifest.
    """

    id: Annotated[str, ID]
    digest: Annotated[str, DIGEST]
    size: Annotated[int, range(1, LARGEST + 1)]
    name: str
    seconds: float
    environment: int
    objects: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a pack.

    Attributes:
        model: of the pack; empty if it contains a whole store.
        version: of the fusioncache that made it.
        environments: for each, the ingredients that entries require of a machine.
        entries: sorted by name.
        objects: sorted by name, each once.
    """

    model: str
    version: str
    environments: tuple[Mapping[str, str], ...]
    entries: tuple[PackedEntry, ...]
    objects: tuple[PackedObject, ...]

    @property
    def size(self) -> int:
        """The number of bytes behind the manifest."""
        return sum(one.size for one in self.entries) + sum(one.size for one in self.objects)

    def validate(self) -> None:
        """Checks that entries and objects are in order, and that all indexes are valid.

        Raises:
            ValueError: if they are not.
        """
        if len(self.entries) > MOST_ENTRIES or len(self.objects) > MOST_ENTRIES * 4:
            raise ValueError("has too many entries")
        ids, digests = [one.id for one in self.entries], [one.digest for one in self.objects]
        if ids != sorted({*ids}) or digests != sorted({*digests}):
            raise ValueError("has something twice, or not in order")
        for entry in self.entries:
            places = (entry.environment < len(self.environments), *(one < len(self.objects) for one in entry.objects))
            if not all(places) or len(entry.objects) > MOST_ARTIFACTS:
                raise ValueError(f"says of {entry.id} what is not there")


@dataclass(frozen=True, slots=True)
class PackHead:
    """The part of a pack up to the end of its manifest.

    Attributes:
        origin: the key that signed it.
        digest: SHA-256 of the line above the manifest and the manifest.
        manifest: its contents.
    """

    origin: Origin
    digest: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Pack(PackHead):
    """A pack on disk with a verified manifest.

    Attributes:
        path: of the file.
        places: the offset in the file of each entry and object, by id or digest.
    """

    path: Path
    places: Mapping[str, int]

    def read_entry(self, packed: PackedEntry, trust: Trust) -> tuple[Entry, dict[str, bytes]]:
        """Returns an entry, verified by its own signature, and its artifacts, every byte verified.

        Raises:
            Refusal: if anything is damaged, or the entry is not trusted or has other objects than the manifest
                declares.
            StoreError: if the pack is shorter than its manifest declares.
            OSError: if it cannot be read.
        """
        with open(self.path, "rb") as file:

            def read(name: str, size: int, digest: str) -> bytes:
                content = _read(file, self.places[name], size)
                if hashlib.sha256(content).hexdigest() != digest:
                    raise Refusal("a wrong checksum", name)
                return content

            entry = open_entry(read(packed.id, packed.size, packed.digest), packed.id, trust)
            objects = {self.manifest.objects[place] for place in packed.objects}
            if {PackedObject(part.object, part.size) for part in entry.artifacts} != objects:
                raise Refusal("an entry with other objects than the pack says", packed.id)
            return entry, {part.name: read(part.object, part.size, part.object) for part in entry.artifacts}


def _read(file: BinaryIO, start: int, size: int) -> bytes:
    file.seek(start)
    content = file.read(size)
    if len(content) != size:
        raise StoreError(f"{file.name} ends too early: copy it again, or make it again")
    return content


def _find_places(manifest: Manifest, start: int) -> Iterator[tuple[str, int]]:
    parts = [(one.id, one.size) for one in manifest.entries] + [(one.digest, one.size) for one in manifest.objects]
    for name, size in parts:
        yield name, start
        start += size


def open_pack(path: Path, trust: Trust) -> Pack:
    """Returns a pack. Verifies the signature before it reads the manifest, and does not read entries and objects.

    Raises:
        StoreError: if it cannot be read, is not a pack, is of another format or damaged, or no trusted key signed it.
            The message advises what to do.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Refusal("it is no file", "give the path of a pack")
            start, size = measure_head(file.read(LONGEST_LINES)), status.st_size
            if start > size:
                raise Refusal(_DAMAGED, "it is shorter than its manifest")
            head = open_head(_read(file, 0, start), trust)
            if size != start + head.manifest.size:
                raise Refusal(_DAMAGED, "it has another length than its manifest says")
    except Refusal as refusal:
        raise StoreError(f"{path} is not used, {refusal}") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}): check the path") from error
    return Pack(head.origin, head.digest, head.manifest, path, dict(_find_places(head.manifest, start)))


def _open_at_once(path: str, flags: int) -> int:
    """Opens a file without waiting for the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def measure_head(lines: bytes) -> int:
    """Returns the number of bytes up to the end of a pack's manifest, given its first ``LONGEST_LINES`` bytes.

    Raises:
        Refusal: if it is not a pack, is of another format, or its manifest is too long.
    """
    below = split_origin(lines)[1]
    found = _HEAD.match(below)
    if found is None:
        raise Refusal("it is no pack", "'fusioncache pack' makes one")
    if int(found[1]) != FORMAT:
        raise Refusal("it is a pack of another format", f"{int(found[1])}, not {FORMAT}: make it again here")
    if int(found[2]) > LARGEST_MANIFEST:
        raise Refusal(_DAMAGED, "its manifest is too long")
    return len(lines) - len(below) + found.end() + int(found[2])


def open_head(content: bytes, trust: Trust) -> PackHead:
    """Returns the head of a pack. Verifies the signature before it reads the manifest.

    Raises:
        Refusal: if no trusted key signed it, or the manifest is damaged.
        StoreError: if signatures cannot be verified here.
    """
    origin, below = trust.open(content)
    try:
        manifest = codec.decode(Manifest, below.partition(b"\n")[2], "manifest")
    except ValueError as error:
        raise Refusal(_DAMAGED, str(error)) from error
    return PackHead(origin, hashlib.sha256(below).hexdigest(), manifest)


@dataclass(frozen=True, slots=True)
class PackResult:
    """The result of writing a pack.

    Attributes:
        path: of the file.
        digest: of the pack.
        entries: the number of entries.
        objects: the number of objects.
        bytes: of the file.
        refused: the number of entries that were left out, by reason.
    """

    path: Path
    digest: str
    entries: int
    objects: int
    bytes: int
    refused: Mapping[str, int]


class NothingToPack(StoreError):
    """No entry could be packed.

    Attributes:
        refused: the number of entries that were left out, by reason.
    """

    def __init__(self, refused: Mapping[str, int], model: str):
        reasons = f" ({', '.join(refused)})" if refused else ""
        super().__init__(f"there is nothing to pack{f' for {model}' if model else ''}{reasons}: run the model first")
        self.refused = refused


def write_pack(
    disk: DiskStore, ids: Iterable[str], path: Path, *, model: str, version: str, key: SigningKey | None
) -> PackResult:
    """Writes entries of a store with their objects into one file. Replaces an existing file once complete.

    Args:
        disk: the store with the entries.
        ids: of the entries. Unreadable ones, and ones of an older format, are left out and counted.
        path: of the file.
        model: of the pack; empty for a whole store.
        version: of fusioncache.
        key: signs the pack, and the entries that this machine made; None to leave both unsigned.

    Raises:
        StoreError: if there is nothing to pack, it cannot be signed here, or the file cannot be written.
        OSError: if the store cannot be read.
    """
    contents, entries, refused = dict[str, bytes](), list[Entry](), Counter[str]()
    for id_ in sorted({*ids}):
        try:
            entry = _find_whole(disk, id_)
            contents[id_] = sign_entry(entry, key)
            entries.append(entry)
        except Refusal as refusal:
            refused[refusal.reason] += 1
    if not entries:
        raise NothingToPack(refused, model)
    manifest = _make_manifest(entries, contents, model, version)
    body = codec.encode(manifest)
    below = b"fusioncache pack %d %d\n%s" % (FORMAT, len(body), body)
    parts = {part.object: part for entry in entries for part in entry.artifacts}
    with _replaced(path) as file:
        file.write(below if key is None else key.sign(below))
        for one in manifest.entries:
            file.write(contents[one.id])
        for packed in manifest.objects:
            file.write(disk.content(parts[packed.digest]))
        size = file.tell()
    digest = hashlib.sha256(below).hexdigest()
    return PackResult(path, digest, len(entries), len(parts), size, refused)


def _find_whole(disk: DiskStore, id_: str) -> Entry:
    """Returns an entry after every byte of its objects was verified.

    Raises:
        Refusal: if it is missing, damaged, outdated or not trusted.
    """
    entry = disk.entries.get(id_)
    if entry is None:
        raise Refusal("an entry without its artifacts", id_)
    if entry.is_outdated:
        raise Refusal(OTHER_FORMAT, id_)
    if entry.origin is not None:
        read_trust().check(entry.origin)  # else machines that trust the same keys would refuse it
    disk.contents(entry)
    return entry


def _make_manifest(entries: Sequence[Entry], contents: Mapping[str, bytes], model: str, version: str) -> Manifest:
    """Returns the manifest of a pack with these entries, which are sorted by id."""
    objects = sorted({part.object: part.size for entry in entries for part in entry.artifacts}.items())
    places = {digest: place for place, (digest, _) in enumerate(objects)}
    environments: dict[tuple[tuple[str, str], ...], int] = {}
    packed = []
    for entry in entries:
        needs = tuple((name, text) for name, text in entry.texts.items() if name in MACHINE)
        about = contents[entry.id]
        packed.append(
            PackedEntry(
                *(entry.id, hashlib.sha256(about).hexdigest(), len(about), entry.name, entry.seconds),
                environments.setdefault(needs, len(environments)),
                tuple(sorted({places[part.object] for part in entry.artifacts})),
            )
        )
    listed = tuple(PackedObject(digest, size) for digest, size in objects)
    return Manifest(model, version, tuple(map(dict, environments)), tuple(packed), listed)


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file that replaces the file at a path at exit. After a failure it is removed.

    Raises:
        StoreError: if the file cannot be written, or the path is not a file.
    """
    temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    try:
        if path.exists() and not path.is_file():
            raise StoreError(f"{path} is no file: give the path of a file")
        with open(temporary, "xb") as file:  # does not follow a link
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror}): give another path") from error
    finally:
        remove(temporary)  # does nothing if it was renamed


@dataclass(frozen=True, slots=True)
class UnpackResult:
    """The result of reading a pack into a store.

    Attributes:
        pack: its digest.
        entries: the number of entries that were stored.
        bytes: of their artifacts.
        skipped: the number of entries that were stored before.
        unfit: the reason for each entry that is for another machine and was left out, by id.
        refused: the number of refused entries, by reason.
        signer: the public key that signed the pack; empty if it is unsigned.
    """

    pack: str
    entries: int
    bytes: int
    skipped: int
    unfit: Mapping[str, str]
    refused: Mapping[str, int]
    signer: str


def unpack(
    pack: Pack,
    disk: DiskStore,
    trust: Trust,
    find_misfit: Callable[[Mapping[str, str]], str | None] | None = None,
    *,
    dry_run: bool = False,
) -> UnpackResult:
    """Stores the entries of a pack, each after its signature and all of its objects were verified.

    Args:
        pack: the pack.
        disk: receives the entries.
        trust: the keys whose entries are accepted.
        find_misfit: returns why entries of an environment are useless on this machine; None if they are not. None to
            store all.
        dry_run: whether to store nothing and only report what would be stored.

    Raises:
        StoreError: if the store cannot be used, or the pack is shorter than its manifest declares.
        OSError: if the pack cannot be read or the store cannot be written.
    """
    unfit, refused = dict[str, str](), Counter[str]()
    reasons = [find_misfit(needs) if find_misfit else None for needs in pack.manifest.environments]
    entries = size = skipped = 0
    for packed in pack.manifest.entries:
        reason = reasons[packed.environment]
        if reason is not None:
            unfit[packed.id] = reason
            continue
        try:
            entry, contents = pack.read_entry(packed, trust)
            if disk.is_usable(packed.id, trust) if dry_run else disk.save(entry, contents) is None:
                skipped += 1
            else:
                entries, size = entries + 1, size + entry.size
        except Refusal as refusal:
            refused[refusal.reason] += 1
    return UnpackResult(pack.digest, entries, size, skipped, unfit, refused, pack.origin.key)
