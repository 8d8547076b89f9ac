"""Entries: which artifacts there are for a key. Each is one file that says everything about itself."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fusioncache.ir import Key
from fusioncache.store.errors import Refusal
from fusioncache.store.files import TEMPORARY, fanned_out, publish, read_private, remove

FORMAT = 1
LARGEST = 1 << 26
"""No entry is longer; most of it is the text of the key."""

OTHER_FORMAT = "an entry of another format"

_INODE = (1 << 63) - 1  # so that the index can hold it
_HEADER = re.compile(rb"fusioncache entry (\d+) ([0-9a-f]{64})\n")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_BACKEND = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_ID = re.compile(rf"{_DIGEST.pattern}\.{_BACKEND.pattern}")


@dataclass(frozen=True, slots=True)
class Artifact:
    """One of the things that a backend wants back.

    Attributes:
        name: the backend's name for it.
        object: SHA-256 of its content.
        size: of its content, in bytes.
    """

    name: str
    object: str
    size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What one backend made of one key.

    Attributes:
        digest: of the key.
        backend: which made the artifacts.
        text: the whole text of the key. It decides, not the digest.
        ingredients: name and digest of each part of the text.
        artifacts: sorted by name.
        name: of the template, for people.
        created: seconds since the epoch.
        seconds: that it took to compile.
        pid: the process that stored it.
        host: the machine that it ran on.
    """

    digest: str
    backend: str
    text: str
    ingredients: tuple[tuple[str, str], ...]
    artifacts: tuple[Artifact, ...]
    name: str
    created: float
    seconds: float
    pid: int
    host: str

    @property
    def id(self) -> str:
        """The name of its file."""
        return f"{self.digest}.{self.backend}"

    def is_for(self, key: Key) -> bool:
        """Whether the key is the very one that this was made for."""
        return self.text == key.text


@dataclass(frozen=True, slots=True)
class Found:
    """The file of an entry.

    Attributes:
        size: in bytes.
        used: when it was last used, in nanoseconds since the epoch.
        inode: another one when it was replaced.
    """

    size: int
    used: int
    inode: int


def entry_id(key: Key, backend: str) -> str:
    """The name of the entry for a key.

    Raises:
        Refusal: if there can be none.
    """
    if not _DIGEST.fullmatch(key.digest):
        raise Refusal("a key whose digest is no SHA-256")
    if not _BACKEND.fullmatch(backend):
        raise Refusal("a backend whose name is no plain word", repr(backend))
    # A lone surrogate has no bytes, and two of them would come back as one character.
    if not is_text(key.text):
        raise Refusal("a key whose text is no valid Unicode")
    return f"{key.digest}.{backend}"


def is_text(text: str) -> bool:
    """Whether a text can be written down."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Entries:
    """The files in ``entries/``. When one was last used is its file's time of modification."""

    def __init__(self, folder: Path):
        self._folder = folder

    def exists(self, id_: str) -> bool:
        """Whether there is a file, whatever is in it."""
        return os.path.lexists(self._path(id_))

    def get(self, id_: str) -> Entry | None:
        """The entry; None if there is none.

        Raises:
            Refusal: if what is there is damaged, of another format, or another entry.
            OSError: if it cannot be read.
        """
        content = read_private(self._path(id_), LARGEST)
        if content is None:
            return None
        entry = decoded(content)
        if entry.id != id_:
            raise Refusal("an entry in the place of another", id_)
        return entry

    def put(self, entry: Entry) -> int:
        """Publishes an entry in place of any that is there. Returns its size.

        Raises:
            Refusal: if it is too long.
            OSError: if it cannot be written.
        """
        content = encoded(entry)
        if len(content) > LARGEST:
            raise Refusal("a key that is too long")
        publish(self._path(entry.id), content)
        return len(content)

    def touch(self, id_: str) -> None:
        """Notes that it is being used. Where nothing can be written, nothing is."""
        try:
            os.utime(self._path(id_), follow_symlinks=False)
        except OSError:
            return

    def remove(self, id_: str) -> bool:
        """Removes an entry, if that can be done. Returns whether it was there."""
        return remove(self._path(id_))

    def find(self, id_: str) -> Found | None:
        """The file of one entry; None if there is none."""
        try:
            return _found(os.lstat(self._path(id_)))
        except OSError:
            return None

    def found(self) -> dict[str, Found]:
        """The files that are there, by id, whatever is in them. Files of other names are somebody else's."""
        files = {}
        for file in fanned_out(self._folder):
            if _ID.fullmatch(file.name):
                with suppress(FileNotFoundError):
                    files[file.name] = _found(file.stat(follow_symlinks=False))
        return files

    def litter(self) -> Iterator[Path]:
        """What is left of files that were never published. While somebody writes, theirs too."""
        return (Path(file.path) for file in fanned_out(self._folder) if file.name.startswith(TEMPORARY))

    def _path(self, id_: str) -> Path:
        return self._folder / id_[:2] / id_


def _found(status: os.stat_result) -> Found:
    return Found(status.st_size, status.st_mtime_ns, status.st_ino & _INODE)


def encoded(entry: Entry) -> bytes:
    """The content of an entry's file: a line with the format and a checksum, and all else as JSON."""
    body = json.dumps(asdict(entry)).encode()
    return b"fusioncache entry %d %s\n%s" % (FORMAT, hashlib.sha256(body).hexdigest().encode(), body)


def decoded(content: bytes) -> Entry:
    """The entry in a file.

    Raises:
        Refusal: if it is damaged or of another format.
    """
    header = _HEADER.match(content)
    if header is None:
        raise Refusal("a damaged entry")
    if int(header[1]) != FORMAT:
        raise Refusal(OTHER_FORMAT)
    body = content[header.end() :]
    if hashlib.sha256(body).hexdigest().encode() != header[2]:
        raise Refusal("a damaged entry")
    try:
        return _entry(json.loads(body))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Refusal("a damaged entry") from error


def _entry(fields: dict[str, Any]) -> Entry:
    fields["ingredients"] = tuple((str(name), str(digest)) for name, digest in fields["ingredients"])
    fields["artifacts"] = tuple(Artifact(**artifact) for artifact in fields["artifacts"])
    entry = Entry(**fields)
    if not all(_DIGEST.fullmatch(artifact.object) for artifact in entry.artifacts):
        raise ValueError("an object's name is no digest")
    return entry
