"""Content-addressed files: each is named by the SHA-256 of what is in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fusioncache.store.entry import DIGEST
from fusioncache.store.errors import Refusal
from fusioncache.store.files import fanned_out, litter, publish, read_private, remove


class Objects:
    """The files in ``objects/``. They never change; a file that is not what its name says counts as not there."""

    def __init__(self, folder: Path):
        self._folder = folder

    def put(self, content: bytes) -> str:
        """Stores a content and returns its digest. One that is there already is verified, and replaced if it is broken.

        Raises:
            OSError: if it cannot be written.
        """
        digest = hashlib.sha256(content).hexdigest()
        try:
            there = self.get(digest, len(content)) is not None
        except Refusal:
            there = False
        if not there:
            publish(self._path(digest), content)
        return digest

    def get(self, digest: str, size: int) -> bytes | None:
        """The content with this digest; None if there is none.

        Raises:
            Refusal: if what is there is not that content.
            OSError: if it cannot be read.
        """
        content = read_private(self._path(digest), size)
        if content is None:
            return None
        # Nothing is removed here: another process may have put the right file in its place by now.
        if hashlib.sha256(content).hexdigest() != digest:
            raise Refusal("a wrong checksum", str(self._path(digest)))
        return content

    def sizes(self) -> dict[str, int]:
        """The bytes of each file, by digest. Files of other names are somebody else's."""
        found = {}
        for file in fanned_out(self._folder):
            if DIGEST.fullmatch(file.name):
                with suppress(FileNotFoundError):
                    found[file.name] = file.stat(follow_symlinks=False).st_size
        return found

    def remove(self, digest: str) -> bool:
        """Removes a file, if that can be done. Returns whether it was there."""
        return remove(self._path(digest))

    def litter(self) -> Iterator[Path]:
        """What is left of files that were never published. While somebody writes, theirs too."""
        return litter(self._folder)

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest
