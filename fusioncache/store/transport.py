"""Bytes by name on another machine, below a URL of fsspec.

Each operation ends in time, is tried again, and is given up once for all. Whatever is read asks its budget as it goes.
"""

from __future__ import annotations

import os
import random
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from fusioncache.process import forks
from fusioncache.store.files import TEMPORARY, StoreError

LISTED_FILES = 500_000
"""A listing has no more: a store of 2 GiB has some ten thousand files."""

_CHUNK = 1 << 20


class Budget:
    """The time and the files of one operation.

    A thread that was left behind asks it too, and ends soon.

    Args:
        seconds: from now on.
    """

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds
        self._seconds = seconds
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

    def take(self, file: Any, size: int) -> bytes:
        """Returns so many bytes of a file that is open, or all of it if it is shorter.

        Raises:
            TimeoutError: if there is no time left.
        """
        parts, wanted = [], size
        while wanted > 0 and (part := file.read(min(wanted, _CHUNK))):
            self.check()
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)[:size]


OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
"""Where there are buckets, and folders come and go with what is in them."""

_WEB = {"http", "https"}

_EXTRAS = {
    **dict.fromkeys(("http", "https"), ("aiohttp", "http")),
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gs")),
}
"""The package that a scheme needs, and the extra that installs it."""

_SHARD = re.compile(r"[0-9a-f]{2}")
_CHECK = "check the address"
_REFUSED = (401, 403)


def get_protocols(files: Any) -> set[str]:
    """Returns the schemes of a file system."""
    return {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)


def read_sizes_below(files: Any, folder: str, names: re.Pattern[str], budget: Budget) -> dict[str, int | None]:
    """Returns the bytes of files in the folders of a folder, as far as they are known, by name.

    What a listing says is taken for names alone: where a file is follows from its own.

    Args:
        files: the file system.
        folder: whose folders are named like the first two characters of the files in them.
        names: of the files. All others are left out.
        budget: what it may take.

    Raises:
        FileNotFoundError: if there is no such folder.
        StoreError: if there is more than there may be.
        TimeoutError: if it takes too long.
        Exception: whatever the file system raises.
    """
    listed: Iterator[tuple[str, int | None]]
    if get_protocols(files) & {*OBJECT_STORES, "memory"}:
        listed = ((name, about.get("size")) for name, about in files.find(folder, detail=True).items())
    else:
        # Not find, which leaves out what fails: a location that gave no answer would be taken for an empty one.
        listed = _walk(files, folder)
    found: dict[str, int | None] = {}
    for path, size in listed:
        budget.check()
        budget.count_file()
        # From the end, because a file system may put something before what it was asked for.
        shard, _, name = "/".join(path.split("/")[-2:]).rpartition("/")
        if shard == name[:2] and names.fullmatch(name):
            found[name] = size
    return found


def _walk(files: Any, folder: str) -> Iterator[tuple[str, int | None]]:
    try:
        inside = _list_folder(files, folder)
    except NotADirectoryError as error:
        raise FileNotFoundError(folder) from error
    shards = {name for name, _, is_folder in inside if is_folder and _SHARD.fullmatch(name)}
    for shard in sorted(shards):
        with suppress(FileNotFoundError):  # it was removed meanwhile
            for name, size, is_folder in _list_folder(files, f"{folder.rstrip('/')}/{shard}"):
                if not is_folder:
                    yield f"{shard}/{name}", size


def _list_folder(files: Any, folder: str) -> Iterator[tuple[str, int | None, bool]]:
    """Returns name and size of what is in a folder, and whether it is one."""
    found = files.ls(folder, detail=True)
    return ((_last(about["name"]), about.get("size"), about["type"] == "directory") for about in found)


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def find_absence(files: Any, root: str, *, make: bool) -> str | None:
    """Returns what is missing of a location, and what to do; None if it is there.

    Args:
        files: the file system.
        root: the location in it.
        make: whether writing would make its last folder.

    Raises:
        Exception: whatever the file system raises.
    """
    kinds, folder = get_protocols(files), root.rstrip("/")
    if "memory" in kinds:
        return None
    if kinds & _WEB:
        with files.open(f"{root.rstrip('/')}/", "rb", **_get_stream_options(files)):  # a page, of which nothing is read
            return None
    if kinds & OBJECT_STORES:
        bucket = root.partition("/")[0]
        seen = files.exists(root) or files.exists(bucket)
        return None if seen else f"there is no bucket {bucket} that can be seen from here: make it, or {_CHECK}"
    if files.isdir(folder):
        return None
    above = folder.rpartition("/")[0]
    if files.exists(folder):
        return f"{folder} is no folder: {_CHECK}"
    if make and files.isdir(above):
        return None
    return f"there is no folder {above}: make it, or {_CHECK}" if make else f"there is no such folder: {_CHECK}"


def _get_stream_options(files: Any) -> dict[str, int]:
    """Returns the options with which fsspec reads a file as it comes.

    Over HTTP it would ask for the size first, and then keep all that a server sends, whatever was asked for.
    """
    return {"block_size": 0, "size": 1} if get_protocols(files) & _WEB else {}


def advice(scheme: str, error: BaseException) -> str:
    """Returns what to do about an error of a file system, after a colon; empty if there is none.

    Args:
        scheme: of the URL.
        error: what was raised.
    """
    if isinstance(error, ImportError) and scheme in _EXTRAS:
        package, extra = _EXTRAS[scheme]
        return f': it needs the package {package}, pip install "fusioncache[{extra}]"'
    if isinstance(error, ValueError):
        return f": {_CHECK}"
    if isinstance(error, PermissionError) or getattr(error, "status", None) in _REFUSED:
        return ": check the credentials, and that they may do this"
    unreached = isinstance(error, ConnectionError | TimeoutError | socket.gaierror)
    if unreached or "connect" in type(error).__name__.lower():
        return f": {_CHECK}, and that something answers there"
    return ""


SECONDS = 10.0
"""How long one operation may take, besides a second for each ``BYTES_PER_SECOND``."""

BYTES_PER_SECOND = 1e6
OPEN_SECONDS = 20.0
"""What the first operation of a process has besides: loading what talks to some clouds takes seconds."""

READ_SECONDS = 60.0
"""How long reading may take at the most: a compile waits for it, and the size is what the other side says."""

LIST_SECONDS = 120.0
PAUSES = (0.1, 0.4)
"""Between one try and the next. What hangs is not tried again, because a compile waits for it."""

_WHOLE = {"memory", *OBJECT_STORES}
"""Where a file is there whole or not at all, however it is written."""

_HTTP = re.compile(r"https?://")
_LOCAL = re.compile(r"file:|local:|(?!.*://)", re.DOTALL)
_FINAL = (ImportError, ValueError, PermissionError, NotImplementedError)
_MOST_SAID = 200


class Transport:
    """The files below a URL of fsspec. Nothing that comes from there is trusted here: it is bytes.

    The first operation that fails for good is the last one: all later ones fail at once, without asking.

    Args:
        url: such as ``s3://bucket/folder`` or a path.
    """

    def __init__(self, url: str):
        self._url = url
        self.name = redact_url(url)
        """The URL without what may be secret in it."""
        self.writable = not _HTTP.match(url)
        """Whether anything could be put there, as far as the URL says."""
        self._scheme = self.name.partition("://")[0]
        self._dead: str | None = None
        self._opened: tuple[int, Any, str] | None = None

    def fetch_file(self, path: str, limit: int, expected: int = 0) -> bytes | None:
        """Returns the content of a file; None if there is none.

        Args:
            path: of the file.
            limit: the most bytes that are wanted. There is one more if the file is longer than that.
            expected: about how many bytes it will be.

        Raises:
            StoreError: if there is no answer, or another one than that.
        """
        seconds = min(READ_SECONDS, _seconds(expected))

        def read(files: Any, root: str) -> bytes:
            allowed = Budget(seconds)
            if get_protocols(files) & OBJECT_STORES:  # one request; to open a file asks for its size first
                content: bytes = files.cat_file(_join(root, path), start=0, end=limit + 1)
                return content
            # Not cat_file elsewhere: a server that does not know ranges would send all it has, and all would be kept.
            try:
                with files.open(_join(root, path), "rb", **_get_stream_options(files)) as file:
                    return allowed.take(file, limit + 1)
            except NotADirectoryError as error:
                raise FileNotFoundError(path) from error

        try:
            return self._try("read", read, seconds)
        except FileNotFoundError:
            return None

    def put_file(self, path: str, content: bytes) -> None:
        """Puts a file in place. A reader finds it whole or not at all meanwhile.

        Raises:
            StoreError: if it cannot be written.
        """

        def write(files: Any, root: str) -> None:
            target = _join(root, path)
            if _WHOLE & get_protocols(files):
                files.pipe_file(target, content)
                return
            folder = target.rpartition("/")[0]
            files.makedirs(folder, exist_ok=True)
            temporary = f"{folder}/{TEMPORARY}{uuid.uuid4().hex}"
            try:
                files.pipe_file(temporary, content)
                files.mv(temporary, target)
            except BaseException:
                with suppress(Exception):  # what it was is said
                    files.rm_file(temporary)
                raise

        self._write(write, content)

    def create_file(self, path: str, content: bytes) -> bool:
        """Puts a file in place, unless there is one. Returns whether it was put there.

        Raises:
            StoreError: if it cannot be written.
        """

        def create(files: Any, root: str) -> bool:
            target = _join(root, path)
            if not _WHOLE & get_protocols(files):
                files.makedirs(target.rpartition("/")[0], exist_ok=True)
            try:
                if "file" in get_protocols(files):  # whose pipe_file looks first and writes then
                    _create_local_file(target, content)
                else:
                    files.pipe_file(target, content, mode="create")
            except FileExistsError:
                return False
            except (TypeError, ValueError, NotImplementedError):  # it has no such mode
                if files.exists(target):
                    return False
                files.pipe_file(target, content)
            return True

        return self._write(create, content)

    def _write[T](self, work: Callable[[Any, str], T], content: bytes) -> T:
        try:
            return self._try("write", work, _seconds(len(content)))
        except FileNotFoundError as error:
            raise StoreError(f"{self.name} cannot be written ({self._describe(error)})") from None

    def remove_file(self, path: str) -> None:
        """Removes a file, if it is there.

        Raises:
            StoreError: if it cannot be removed.
        """

        def remove(files: Any, root: str) -> None:
            files.rm_file(_join(root, path))

        with suppress(FileNotFoundError):
            self._try("remove", remove, SECONDS)

    def sizes(self, folder: str, names: re.Pattern[str]) -> dict[str, int | None]:
        """Returns the bytes of files in the folders of a folder, as far as they are known, by their names.

        Args:
            folder: whose folders are named like the first two characters of the files in them.
            names: of the files. Those of other names are not the store's.

        Raises:
            StoreError: if they cannot be listed, or are too many.
        """

        def find(files: Any, root: str) -> dict[str, int | None]:
            return read_sizes_below(files, _join(root, folder), names, Budget(LIST_SECONDS))

        try:
            return self._try("list", find, LIST_SECONDS)
        except FileNotFoundError:
            return {}  # ``require`` says whether the folder above is there

    def require(self, *, make: bool = False) -> None:
        """Does nothing if the place is there, whatever is in it.

        Args:
            make: whether writing there would make its last folder.

        Raises:
            StoreError: if it is not there, or gives no answer. The message says what to do.
        """

        def look(files: Any, root: str) -> str | None:
            return find_absence(files, root, make=make)

        try:
            missing = self._try("look", look, SECONDS)
        except FileNotFoundError:
            missing = f"there is no such folder: {_CHECK}"
        if missing:
            raise StoreError(f"{self.name} cannot be used, {missing}")

    def _try[T](self, what: str, work: Callable[[Any, str], T], seconds: float) -> T:
        for pause in (*PAUSES, None):
            if self._dead:
                raise StoreError(self._dead)
            try:
                allowed = seconds if self._is_open() else seconds + OPEN_SECONDS
                # A thread does it, which is left behind if it takes too long: nothing can end it.
                return run_beside(lambda: work(*self._open_files())).result(allowed)
            except FileNotFoundError as error:
                failure = self._find_hidden_cause(error)
                if failure is None:
                    raise
                said = self._describe(failure) + advice(self._scheme, failure)
            except TimeoutError as error:
                said = f"no answer within {seconds:.0f} s{advice(self._scheme, error)}"
                break
            except StoreError as error:
                said = f"{error}, as no remote does: {_CHECK}"
                break
            except Exception as error:  # whatever a backend raises
                said = self._describe(error) + advice(self._scheme, error)
                if isinstance(error, _FINAL):
                    break
            if pause is not None:
                time.sleep(pause * random.uniform(0.5, 1.5))  # machines that started together do not ask together again
        self._dead = f"{self.name} cannot be used, could not {what}: {said}"
        # Not from the error: it may say the URL, and all of it.
        raise StoreError(self._dead) from None

    def _is_open(self) -> bool:
        # What talks over a network does not survive a fork.
        return self._opened is not None and self._opened[0] == os.getpid()

    def _open_files(self) -> tuple[Any, str]:
        opened = self._opened
        if opened is None or not self._is_open():
            with forks.imports:
                import fsspec

                files, root = fsspec.core.url_to_fs(self._url, skip_instance_cache=True, use_listings_cache=False)
            self._opened = opened = (os.getpid(), files, root)
        return opened[1], opened[2]

    def _find_hidden_cause(self, error: FileNotFoundError) -> BaseException | None:
        """Returns why a file was not found if it is there: over HTTP every failure is reported as absence."""
        failure = error.__cause__
        absent = failure is None or getattr(failure, "status", None) in (404, 410)
        return None if absent or not _HTTP.match(self._url) else failure

    def _describe(self, error: BaseException) -> str:
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {redact(_find_secrets(self._url), lines[0])[:_MOST_SAID]}"


def _create_local_file(path: str, content: bytes) -> None:
    """Creates a file of this machine, which is there whole or not at all.

    Raises:
        FileExistsError: if there is one.
    """
    temporary = f"{path.rpartition('/')[0]}/{TEMPORARY}{uuid.uuid4().hex}"
    try:
        Path(temporary).write_bytes(content)
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: the file is seen empty for a moment
        with open(path, "xb") as file:
            file.write(content)
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def run_beside[T](work: Callable[[], T]) -> Future[T]:
    """Returns what a thread of its own will return. The thread is left behind where the process ends first."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="fusioncache-remote", daemon=True).start()
    return answer


def redact_url(url: str) -> str:
    """Returns the URL without user, password, query and fragment."""
    if _LOCAL.match(url):
        return url
    # Up to the last @, because people write secrets with slashes in them.
    return re.split(r"[?#]", re.sub(r"//.*@", "//", url, flags=re.DOTALL))[0]


def redact(secrets: Iterable[str], text: str) -> str:
    """Returns the text without these, and without anything that looks like the secret part of a URL."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return re.sub(r"\?[^\s'\"]*", "", re.sub(r"//[^\s'\"]*@", "//", text))


def _find_secrets(url: str) -> set[str]:
    if _LOCAL.match(url):
        return set()
    found = re.search(r"//(.*)@", url, flags=re.DOTALL)
    parts = [found[1], *found[1].split(":", 1)] if found else []
    rest = re.split(r"[?#]", url)[1:]
    parts += [*rest, *(value for part in rest for _, value in parse_qsl(part))]
    return {way for part in parts for way in (part, unquote(part), quote(part, safe="")) if way}


def _join(root: str, path: str) -> str:
    head, mark, query = root.partition("?") if _HTTP.match(root) else (root, "", "")
    return f"{head.rstrip('/')}/{path}{mark}{query}"


def _seconds(size: int) -> float:
    return SECONDS + size / BYTES_PER_SECOND
