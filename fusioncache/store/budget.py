"""What an operation on another machine may take. Whatever is read from there asks as it goes."""

from __future__ import annotations

import time
from typing import Any

from fusioncache.store.errors import StoreError

LISTING_BYTES = 128 << 20
"""Of all pages of one listing."""
LISTED_FILES = 500_000
"""A listing has no more: a store of 2 GiB has some ten thousand files."""

_CHUNK = 1 << 20


class Budget:
    """The time, the bytes and the files of one operation.

    A thread that nobody waits for any more asks it too, and ends soon.

    Args:
        seconds: from now on.
        size: of what is read, in bytes.
    """

    def __init__(self, seconds: float, size: int):
        self._end = time.monotonic() + seconds
        self._seconds = seconds
        self._size = self._left = size
        self._files = 0

    def check(self) -> None:
        """Does nothing while there is time.

        Raises:
            TimeoutError: if there is none left.
        """
        if time.monotonic() > self._end:
            raise TimeoutError(f"it took more than {self._seconds:.0f} s")

    def count_file(self) -> None:
        """Counts a file of a listing.

        Raises:
            StoreError: if there are too many.
        """
        self._files += 1
        if self._files > LISTED_FILES:
            raise StoreError(f"it lists more than {LISTED_FILES} files")

    def read(self, file: Any, size: int | None = None) -> bytes:
        """Returns the content of a file that is open, or so many bytes of it.

        Raises:
            StoreError: if it is longer than what may be read.
            TimeoutError: if there is no time left.
        """
        parts, wanted = [], self._left + 1 if size is None else size
        while wanted > 0 and (part := file.read(min(wanted, _CHUNK))):
            self.check()
            parts.append(part)
            wanted -= len(part)
            self._left -= len(part)
            if self._left < 0:
                raise StoreError(f"it sends more than {self._size} bytes")
        return b"".join(parts)
