"""Bytes by name on another machine. Each operation ends in time, is tried again, and is given up once for all."""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from fusioncache.process.settings import REMOTE
from fusioncache.store import budget
from fusioncache.store.budget import Budget
from fusioncache.store.errors import StoreError
from fusioncache.store.files import TEMPORARY
from fusioncache.store.locations import OBJECT_STORES, advice, find_absence, get_protocols, read_sizes_below

SECONDS = 10.0
"""How long one operation may take, besides a second for each ``BYTES_PER_SECOND``."""

BYTES_PER_SECOND = 1e6
OPEN_SECONDS = 20.0
"""What the first operation of a process has besides: loading what talks to some clouds takes seconds."""

READ_SECONDS = 60.0
"""How long reading may take at the most: a compile waits for it, and the size is what the other side says."""

LIST_SECONDS = 120.0
PAUSES = (0.1, 0.4)
"""Between one try and the next. What hangs is not tried again, because somebody waits for it."""

TOO_MUCH_ADVICE = f"check the address, or set {REMOTE.name} to it, by which files are asked for one by one"

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
        self._dead: str | None = None
        self._opened: tuple[int, Any, str] | None = None

    def read(self, path: str, limit: int, expected: int = 0) -> bytes | None:
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
            allowed = Budget(seconds, limit + 1)
            # Not cat_file: a server that does not know ranges would send all it has, and all would be kept.
            with files.open(_join(root, path), "rb") as file:
                return allowed.read(file, limit + 1)

        try:
            return self._try("read", read, seconds)
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        """Puts a file in place. Whoever reads it meanwhile finds it whole or not at all.

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
            files.pipe_file(temporary, content)
            files.mv(temporary, target)

        if not self.writable:
            raise StoreError(f"{self.name} can only be read")
        try:
            self._try("write", write, _seconds(len(content)))
        except FileNotFoundError as error:
            raise StoreError(f"{self.name} cannot be written ({self._describe(error)})") from None

    def sizes(self, folder: str, names: re.Pattern[str]) -> dict[str, int | None]:
        """Returns the bytes of files in the folders of a folder, as far as they are known, by their names.

        Args:
            folder: whose folders are named like the first two characters of the files in them.
            names: of the files. Those of other names are somebody else's.

        Raises:
            StoreError: if they cannot be listed, or are too many.
        """

        def find(files: Any, root: str) -> dict[str, int | None]:
            if _HTTP.match(root) and "?" in root:
                raise NotImplementedError("over HTTP, what is behind a query cannot be listed")
            return read_sizes_below(files, _join(root, folder), names, Budget(LIST_SECONDS, budget.LISTING_BYTES))

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
            return find_absence(files, root, self._url, make=make)

        try:
            missing = self._try("look", look, SECONDS)
        except FileNotFoundError as error:
            missing = self._describe(error)
        if missing:
            raise StoreError(f"{self.name} cannot be used, {missing}")

    @property
    def _scheme(self) -> str:
        return self.name.partition("://")[0]

    def _try[T](self, what: str, work: Callable[[Any, str], T], seconds: float) -> T:
        for pause in (*PAUSES, None):
            if self._dead:
                raise StoreError(self._dead)
            try:
                return call_in_time(
                    lambda: work(*self._open_files()), seconds if self._is_open() else seconds + OPEN_SECONDS
                )
            except FileNotFoundError as error:
                failure = self._find_hidden_cause(error)
                if failure is None:
                    raise
                said = self._describe(failure) + advice(self._scheme, failure)
            except TimeoutError as error:
                said = f"no answer within {seconds:.0f} s{advice(self._scheme, error)}"
                break
            except StoreError as error:
                said = f"{error}, as no store does: {TOO_MUCH_ADVICE}"
                break
            except Exception as error:  # whatever a backend raises
                said = self._describe(error) + advice(self._scheme, error)
                if isinstance(error, _FINAL):
                    break
            if pause is not None:
                time.sleep(pause)
        self._dead = f"{self.name} cannot be used, could not {what}: {said}"
        # Not from the error: it may say the URL, and all of it.
        raise StoreError(self._dead) from None

    def _is_open(self) -> bool:
        # What talks over a network does not survive a fork.
        return self._opened is not None and self._opened[0] == os.getpid()

    def _open_files(self) -> tuple[Any, str]:
        opened = self._opened
        if opened is None or not self._is_open():
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


def call_in_time[T](work: Callable[[], T], seconds: float) -> T:
    """Returns what the work gives. A thread does it, which is left behind if it takes too long: nothing can end it.

    Raises:
        TimeoutError: if it takes longer than that.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="fusioncache-remote", daemon=True).start()
    return answer.result(seconds)


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
