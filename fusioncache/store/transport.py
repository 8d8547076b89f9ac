"""Files by name on another machine, below a URL of fsspec.

Each operation has a time limit and is retried; after a final failure all later ones fail. Reads check a ``Budget``.
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
"""Maximum number of files in a listing. A store of 2 GiB has some ten thousand."""

_CHUNK = 1 << 20


class Budget:
    """The time limit of one operation.

    An abandoned thread checks them as well, and so ends soon.

    Args:
        seconds: the time limit, from now on.
    """

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds
        self._seconds = seconds

    def check(self) -> None:
        """Checks that time is left.

        Raises:
            TimeoutError: if none is left.
        """
        if time.monotonic() > self._end:
            raise TimeoutError(f"it took more than {self._seconds:.0f} s")

    def take(self, file: Any, size: int) -> bytes:
        """Returns the first ``size`` bytes of an open file, or all of it if it is shorter.

        Raises:
            TimeoutError: if no time is left.
        """
        parts, wanted = [], size
        while wanted > 0 and (part := file.read(min(wanted, _CHUNK))):
            self.check()
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)[:size]


OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
"""Schemes with buckets, in which a folder exists only while it contains files."""

_WEB = {"http", "https"}

_EXTRAS = {
    **dict.fromkeys(("http", "https"), ("aiohttp", "http")),
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gs")),
}
"""The package that a scheme needs, and the extra of fusioncache that installs it."""

_SHARD = re.compile(r"[0-9a-f]{2}")
_CHECK = "check the address"
_REFUSED = (401, 403)


def get_protocols(files: Any) -> set[str]:
    """Returns the schemes of a file system."""
    return {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)


def read_sizes_below(files: Any, folder: str, names: re.Pattern[str], budget: Budget) -> dict[str, int | None]:
    """Returns the sizes in bytes (None if unknown) of the files in the folders of a folder, by name.

    Only names are taken from listed paths, because the path of a file follows from its name.

    Args:
        files: the file system.
        folder: its folders are named by the first two characters of their files' names.
        names: a pattern. Files with other names are left out.
        budget: the time limit.

    Raises:
        FileNotFoundError: if there is no such folder.
        StoreError: if there are too many files.
        TimeoutError: if it takes too long.
        Exception: any error of the file system.
    """
    listed: Iterator[tuple[str, int | None]]
    if get_protocols(files) & {*OBJECT_STORES, "memory"}:
        listed = ((name, about.get("size")) for name, about in files.find(folder, detail=True).items())
    else:
        # Not ``find``, which ignores errors: a location that does not answer would look empty.
        listed = _walk(files, folder)
    found: dict[str, int | None] = {}
    for number, (path, size) in enumerate(listed, 1):
        budget.check()
        if number > LISTED_FILES:
            raise StoreError(f"it lists more than {LISTED_FILES} files")
        # From the end, because a file system may prepend a prefix to the requested path.
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
    """Returns name and size of each item in a folder, and whether the item is a folder."""
    found = files.ls(folder, detail=True)
    return ((_last(about["name"]), about.get("size"), about["type"] == "directory") for about in found)


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def find_absence(files: Any, root: str, *, make: bool) -> str | None:
    """Returns a message if a location is missing, with advice; None if it exists.

    Args:
        files: the file system.
        root: the location in it.
        make: whether the last folder may be missing, because writing makes it.

    Raises:
        Exception: any error of the file system.
    """
    kinds, folder = get_protocols(files), root.rstrip("/")
    if "memory" in kinds:
        return None
    if kinds & _WEB:
        with files.open(f"{root.rstrip('/')}/", "rb", **_get_stream_options(files)):  # the page is not read
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
    """Returns the options with which fsspec streams a file.

    Without them it would first request the size over HTTP, and buffer all that a server sends beyond the request.
    """
    return {"block_size": 0, "size": 1} if get_protocols(files) & _WEB else {}


def advice(scheme: str, error: BaseException) -> str:
    """Returns advice on an error of a file system, after a colon; empty if there is none.

    Args:
        scheme: of the URL.
        error: the exception.
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
"""Maximum time of an operation, plus a second for each ``BYTES_PER_SECOND``."""

BYTES_PER_SECOND = 1e6
OPEN_SECONDS = 20.0
"""Additional time for the first operation of a process: to import the client of a cloud may take seconds."""

READ_SECONDS = 60.0
"""Maximum time of a read. A compile waits for it, and the expected size comes from the remote and may be wrong."""

LIST_SECONDS = 120.0
PAUSES = (0.1, 0.4)
"""Pauses between tries. After a timeout there is no further try, because a compile waits."""

_ATOMIC_SCHEMES = {"memory", *OBJECT_STORES}
"""Schemes in which each write is atomic: a file is whole or absent."""

_HTTP = re.compile(r"https?://")
_LOCAL = re.compile(r"file:|local:|(?!.*://)", re.DOTALL)
_FINAL = (ImportError, ValueError, PermissionError, NotImplementedError)
_MOST_SAID = 200


class Transport:
    """The files below a URL of fsspec. Their content is not verified here.

    After the first final failure of an operation all later ones fail at once, without a request.

    Args:
        url: such as ``s3://bucket/folder`` or a path.
    """

    def __init__(self, url: str):
        self._url = url
        self.name = redact_url(url)
        """The URL without parts that may be secret."""
        self.writable = not _HTTP.match(url)
        """Whether the URL's scheme can be written."""
        self._scheme = self.name.partition("://")[0]
        self._final_error: str | None = None
        self._opened: tuple[int, Any, str] | None = None

    def fetch_file(self, path: str, limit: int, expected: int = 0) -> bytes | None:
        """Returns the content of a file, or None.

        Args:
            path: of the file.
            limit: the maximum number of bytes. The result has one more if the file is longer.
            expected: the approximate size in bytes, for the time limit.

        Raises:
            StoreError: if the remote does not answer or reports another error.
        """
        seconds = min(READ_SECONDS, _seconds(expected))

        def read(files: Any, root: str) -> bytes:
            allowed = Budget(seconds)
            if get_protocols(files) & OBJECT_STORES:  # one request; ``open`` would request the size first
                content: bytes = files.cat_file(_join(root, path), start=0, end=limit + 1)
                return content
            # Not ``cat_file`` elsewhere: a server without range requests would send all, and all would be buffered.
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
        """Writes a file. Meanwhile readers see the whole file or none.

        Raises:
            StoreError: if it cannot be written.
        """

        def write(files: Any, root: str) -> None:
            target = _join(root, path)
            if _ATOMIC_SCHEMES & get_protocols(files):
                files.pipe_file(target, content)
                return
            folder = target.rpartition("/")[0]
            files.makedirs(folder, exist_ok=True)
            temporary = f"{folder}/{TEMPORARY}{uuid.uuid4().hex}"
            try:
                files.pipe_file(temporary, content)
                files.mv(temporary, target)
            except BaseException:
                with suppress(Exception):  # the first error is raised
                    files.rm_file(temporary)
                raise

        self._write(write, content)

    def create_file(self, path: str, content: bytes) -> bool:
        """Creates a file, unless it exists. Returns True if it was created.

        Raises:
            StoreError: if it cannot be written.
        """

        def create(files: Any, root: str) -> bool:
            target = _join(root, path)
            if not _ATOMIC_SCHEMES & get_protocols(files):
                files.makedirs(target.rpartition("/")[0], exist_ok=True)
            try:
                if "file" in get_protocols(files):  # ``pipe_file`` is not atomic there: it checks, then writes
                    _create_local_file(target, content)
                else:
                    files.pipe_file(target, content, mode="create")
            except FileExistsError:
                return False
            except (TypeError, ValueError, NotImplementedError):  # the file system has no mode "create"
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
        """Removes a file, if it exists.

        Raises:
            StoreError: if it cannot be removed.
        """
        with suppress(FileNotFoundError):
            self._try("remove", lambda files, root: files.rm_file(_join(root, path)), SECONDS)

    def sizes(self, folder: str, names: re.Pattern[str]) -> dict[str, int | None]:
        """Returns the sizes in bytes (None if unknown) of the files in the folders of a folder, by name.

        Args:
            folder: its folders are named by the first two characters of their files' names.
            names: a pattern. Files with other names are not the store's.

        Raises:
            StoreError: if they cannot be listed, or are too many.
        """

        def find(files: Any, root: str) -> dict[str, int | None]:
            return read_sizes_below(files, _join(root, folder), names, Budget(LIST_SECONDS))

        try:
            return self._try("list", find, LIST_SECONDS)
        except FileNotFoundError:
            return {}  # ``require`` checks whether the folder above exists

    def require(self, *, make: bool = False) -> None:
        """Checks that the location exists, with any content.

        Args:
            make: whether the last folder may be missing, because writing makes it.

        Raises:
            StoreError: if it does not exist, or does not answer. The message advises what to do.
        """
        try:
            missing = self._try("look", lambda files, root: find_absence(files, root, make=make), SECONDS)
        except FileNotFoundError:
            missing = f"there is no such folder: {_CHECK}"
        if missing:
            raise StoreError(f"{self.name} cannot be used, {missing}")

    def _try[T](self, what: str, work: Callable[[Any, str], T], seconds: float) -> T:
        for pause in (*PAUSES, None):
            if self._final_error:
                raise StoreError(self._final_error)
            try:
                allowed = seconds if self._is_open() else seconds + OPEN_SECONDS
                # In a thread, which is abandoned after the time limit, because threads cannot be ended.
                return run_in_thread(lambda: work(*self._open_files())).result(allowed)
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
            except Exception as error:  # any error of the file system
                said = self._describe(error) + advice(self._scheme, error)
                if isinstance(error, _FINAL):
                    break
            if pause is not None:
                time.sleep(pause * random.uniform(0.5, 1.5))  # random, so that machines that started together spread
        self._final_error = f"{self.name} cannot be used, could not {what}: {said}"
        # Not from the error, which may contain the whole URL with its secrets.
        raise StoreError(self._final_error) from None

    def _is_open(self) -> bool:
        # A network client does not survive a fork.
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
        """Returns the real cause if a file is not absent: over HTTP fsspec reports every failure as absence."""
        failure = error.__cause__
        absent = failure is None or getattr(failure, "status", None) in (404, 410)
        return None if absent or not _HTTP.match(self._url) else failure

    def _describe(self, error: BaseException) -> str:
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {redact(_find_secrets(self._url), lines[0])[:_MOST_SAID]}"


def _create_local_file(path: str, content: bytes) -> None:
    """Creates a local file atomically: readers see the whole file or none.

    Raises:
        FileExistsError: if it exists.
    """
    temporary = f"{path.rpartition('/')[0]}/{TEMPORARY}{uuid.uuid4().hex}"
    try:
        Path(temporary).write_bytes(content)
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: readers may see a partial file for a moment
        with open(path, "xb") as file:
            file.write(content)
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def run_in_thread[T](work: Callable[[], T]) -> Future[T]:
    """Runs a function in a new thread, and returns a future of its result. The process does not wait for it at exit."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    try:
        threading.Thread(target=run, name="fusioncache-remote", daemon=True).start()
    except RuntimeError as error:  # such as at interpreter shutdown
        answer.set_exception(StoreError(f"no thread can ask the remote ({error})"))
    return answer


def redact_url(url: str) -> str:
    """Returns the URL without user, password, query and fragment."""
    if _LOCAL.match(url):
        return url
    # Up to the last @, because unescaped secrets may contain slashes.
    return re.split(r"[?#]", re.sub(r"//.*@", "//", url, flags=re.DOTALL))[0]


def redact(secrets: Iterable[str], text: str) -> str:
    """Returns the text without these secrets, and without all parts that look like the secret part of a URL."""
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
