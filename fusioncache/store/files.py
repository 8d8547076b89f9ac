"""The exceptions of a store, and its file access: reads only files of this user, and publishes whole files."""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fusioncache.process.files import make_folder, remove


class StoreError(Exception):
    """A store or a remote cannot be used. The message says why, and contains no credentials."""


class Refusal(Exception):
    """The store does not accept or does not return something, such as an entry.

    Attributes:
        reason: a short fixed phrase, so that refusals can be counted by it.
    """

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def name_cause(error: Exception) -> str:
    """Returns the name to count an error by: that of its ``errno``, such as ``ENOSPC``, else of its type."""
    number = error.errno if isinstance(error, OSError) else None
    return errno.errorcode.get(number or 0, type(error).__name__)


TEMPORARY = "tmp-"
"""Prefix of the names of files that are being written."""

# Does not follow a link, and does not wait for the other end of a pipe.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


_REASONS = {
    errno.ELOOP: "a link in place of a file",
    errno.ENXIO: "no regular file",
    errno.EACCES: "a file that cannot be read",
}


def is_writable_for_others(status: os.stat_result) -> bool:
    """True if the permissions allow users other than the owner to write."""
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def is_owned(status: os.stat_result) -> bool:
    """True if the owner is this user or root, which can write everything anyway."""
    return status.st_uid in (0, os.geteuid())


def read_private(path: Path, limit: int) -> bytes | None:
    """Returns the content of a file, or None.

    Checks the file's owner and permissions at each read. The checks at opening do not suffice, because a user who may
    rename a folder above the store can replace it at any time.

    Args:
        path: of the file.
        limit: the maximum number of bytes.

    Raises:
        Refusal: if another user could have written it, it is not a regular file, or it is too long.
        OSError: if it cannot be read.
    """
    try:
        descriptor = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        reason = _REASONS.get(error.errno or 0)
        if reason:
            raise Refusal(reason, str(path)) from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Refusal("no regular file", str(path))
        if not is_owned(status) or is_writable_for_others(status):
            raise Refusal("a file that others can write", str(path))
        if status.st_size > limit:
            raise Refusal("a file of the wrong length", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size)
    finally:
        os.close(descriptor)


def publish(path: Path, content: bytes) -> None:
    """Writes a file and renames it into place. Replaces an existing file, and sets aside a folder that is not empty.

    If two processes publish the same name at once, the order does not matter: each publishes a whole, right file.

    Raises:
        OSError: if it cannot be written. Then no temporary file is left, unless the process is killed.
    """
    temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    try:
        descriptor = _create(temporary)
        try:
            _write(descriptor, content)
            os.fsync(descriptor)
        finally:
            # Not suppressed: a quota or a network file system may refuse only now, and then the file is not published.
            os.close(descriptor)
        _replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise


def _replace(temporary: Path, path: Path) -> None:
    try:
        os.replace(temporary, path)
    except IsADirectoryError:
        if not remove(path):
            raise
        os.replace(temporary, path)


def _create(path: Path) -> int:
    try:
        return os.open(path, _WRITE, 0o600)
    except FileNotFoundError:
        # Only the last folder: a write must not recreate a store that was removed.
        make_folder(path.parent)
        return os.open(path, _WRITE, 0o600)


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def scan_shards(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yields the files in the folders of a folder, except for folders that vanish meanwhile or cannot be read."""
    for inner in _scan(folder):
        if inner.is_dir(follow_symlinks=False):
            with suppress(PermissionError):
                yield from _scan(Path(inner.path))


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except FileNotFoundError:
        return []
