"""What can go wrong in a store; and its files, which no other user can have written and which are there whole."""

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
    """A store cannot be used, here or on another machine; the message says why, and holds no credentials."""


class Refusal(Exception):
    """One thing that the store does not take or does not give out.

    Attributes:
        reason: a short phrase, the same for everything refused for this reason, so that refusals can be counted by it.
    """

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def name_cause(error: Exception) -> str:
    """Returns what to count an error as: the name of its number, such as ``ENOSPC``, else of its type."""
    number = error.errno if isinstance(error, OSError) else None
    return errno.errorcode.get(number or 0, type(error).__name__)


TEMPORARY = "tmp-"
"""How the names of files begin that are being written."""

# Not through a link, and not waiting for the other end if a pipe is there.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


_REASONS = {
    errno.ELOOP: "a link in place of a file",
    errno.ENXIO: "no regular file",
    errno.EACCES: "a file that cannot be read",
}


def is_writable_for_others(status: os.stat_result) -> bool:
    """Returns whether the permissions let anyone but the owner write."""
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def is_owned(status: os.stat_result) -> bool:
    """Returns whether the owner is this user, or root, who could do anything anyway."""
    return status.st_uid in (0, os.geteuid())


def read_private(path: Path, limit: int) -> bytes | None:
    """Returns the content of a file; None if there is none.

    A user who may rename a folder above the store can put another in its place at any time, so that what was checked at
    opening says little about a file that is read later. Its owner and permissions do.

    Args:
        path: of the file.
        limit: the most bytes that it may have.

    Raises:
        Refusal: if another user could have written it, it is no regular file, or it is too long.
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
    """Puts a file in place in one step. What was there before is replaced, a folder that is not empty set aside.

    It does not matter who comes last: of two processes that publish the same name at once, each publishes a whole file
    that is right.

    Raises:
        OSError: if it cannot be written; nothing is left behind then, unless the process is killed.
    """
    temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    try:
        descriptor = _create(temporary)
        try:
            _write(descriptor, content)
            os.fsync(descriptor)
        finally:
            # Where a quota or a network file system refuses only now, the file must not be published either.
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
        # Only the last folder: if the store itself is gone, it is not for a file to bring it back.
        make_folder(path.parent)
        return os.open(path, _WRITE, 0o600)


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def scan_shards(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Returns the files in the folders of a folder. One that vanishes meanwhile, or cannot be read, is left out."""
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
