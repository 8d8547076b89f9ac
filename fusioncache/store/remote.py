"""A store on another machine: immutable files under the names that they have on disk, every byte of them verified.

Whoever can write there says what runs here: checksums show what broke on its way, not who wrote it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fusioncache.ir import Key
from fusioncache.store.disk import OTHER_KEY, DiskStore
from fusioncache.store.entry import DIGEST, ID, LARGEST, Artifact, Entry, decode_entry, encode_entry
from fusioncache.store.errors import Refusal, StoreError
from fusioncache.store.transport import Transport

if TYPE_CHECKING:
    from fusioncache.store.store import StoreCounts

MOST_BYTES = 256 << 20
"""Of one entry with its artifacts, which are in memory together. What compilers make has some megabytes."""
MOST_ARTIFACTS = 1000
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
            Refusal: if what is there is damaged, of another format, or another entry.
            StoreError: if the remote cannot be used.
        """
        content = self._transport.read(_entry_path(id_), LARGEST)
        if content is None:
            return None
        if len(content) > LARGEST:
            raise Refusal("an entry that is too long", id_)
        entry = decode_entry(content, id_)
        if hashlib.sha256(entry.text.encode()).hexdigest() != entry.digest:
            # On disk it would keep the place of the right one.
            raise Refusal("an entry whose key has another digest", id_)
        return entry

    def content(self, artifact: Artifact) -> bytes:
        """Returns one artifact, every byte verified.

        Raises:
            Refusal: if it is not there, or not what its name says.
            StoreError: if the remote cannot be used.
        """
        content = self._transport.read(_object_path(artifact.object), artifact.size, expected=artifact.size)
        if content is None:
            raise Refusal("an entry without its artifacts", artifact.object)
        if len(content) != artifact.size or hashlib.sha256(content).hexdigest() != artifact.object:
            raise Refusal("a wrong checksum", artifact.object)
        return content

    def find(
        self, key: Key, id_: str, limit: int, here: Callable[[Artifact], bytes | None]
    ) -> tuple[Entry, dict[str, bytes]] | None:
        """Finds the entry for this very key and its artifacts; None if there is none.

        Args:
            key: whose text decides.
            id_: of the entry.
            limit: the most bytes that all of it may have.
            here: an artifact that need not be brought; None if it must be.

        Raises:
            Refusal: if what is there is not for this key, not what it says it is, or too large.
            StoreError: if the remote cannot be used.
        """
        entry = self.entry(id_)
        if entry is None:
            return None
        if entry.text != key.text:
            raise Refusal(OTHER_KEY, id_)
        return entry, self.contents(entry, limit, here)

    def contents(self, entry: Entry, limit: int, here: Callable[[Artifact], bytes | None]) -> dict[str, bytes]:
        """Returns the artifacts of an entry. For arguments and what it raises see ``find``."""
        size = measure(entry)
        if size > limit:
            raise Refusal("larger than the store may be", entry.id)
        if size > MOST_BYTES or len(entry.artifacts) > MOST_ARTIFACTS:
            raise Refusal("an entry that is too large", entry.id)
        contents = {}
        for artifact in entry.artifacts:
            content = here(artifact)
            contents[artifact.name] = self.content(artifact) if content is None else content
        return contents

    def put(self, entry: Entry) -> int:
        """Puts an entry there, whose objects must be there. Returns its size.

        Raises:
            StoreError: if it cannot be written.
        """
        content = encode_entry(entry)
        self._transport.write(_entry_path(entry.id), content)
        return len(content)

    def put_object(self, artifact: Artifact, content: bytes) -> None:
        """Puts the content of an artifact there.

        Raises:
            StoreError: if it cannot be written.
        """
        self._transport.write(_object_path(artifact.object), content)

    def list_files(self) -> RemoteFiles:
        """Returns what is there. Files of other names are somebody else's.

        Raises:
            StoreError: if it cannot be listed.
        """
        return RemoteFiles(self._transport.sizes("entries", ID), self._transport.sizes("objects", DIGEST))

    def require(self, *, make: bool = False) -> None:
        """Does nothing if the place is there, even if nothing is in it. See ``Transport.require``."""
        self._transport.require(make=make)


def measure(entry: Entry) -> int:
    """Returns the bytes of an entry with its artifacts, as it says itself."""
    return len(entry.text) + sum(artifact.size for artifact in entry.artifacts)


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

        def here(artifact: Artifact) -> bytes | None:
            with suppress(Refusal, OSError):
                return disk.content(artifact) if disk else None
            return None

        if self._failed:
            return None
        remote, start = self._remote, time.monotonic()
        try:
            found = remote.find(key, id_, limit, here)
            if found is not None:
                self._vain = 0.0
                return found
        except Refusal as refusal:
            message = f"what {remote} has is not used: {refusal}"
            self._counts.count_bypass(f"remote: {refusal.reason}", message)
        except StoreError as error:
            self._fail(str(error))
        except Exception as error:  # whatever it is; what it says may not be for everybody
            self._fail(f"{remote} cannot be used ({type(error).__name__})")
        self._vain += time.monotonic() - start
        if self._vain > VAIN_SECONDS and not self._failed:
            self._fail(f"{remote} took {self._vain:.0f} s for what it does not have")
        return None

    def _fail(self, message: str) -> None:
        self._failed = True
        self._counts.count_bypass("the remote failed", f"{message}. It is not asked again")
