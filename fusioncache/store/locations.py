"""Whether the location that a URL of fsspec names is there, what is in it, and what to do where it cannot be used."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from typing import Any
from urllib.parse import unquote

from fusioncache.store.budget import Budget

OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
"""Where there are buckets, and folders come and go with what is in them."""

_EXTRAS = {
    **dict.fromkeys(("http", "https"), ("aiohttp", "http")),
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gs")),
}
"""The package that a scheme needs, and the extra that installs it."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_SHARD = re.compile(r"[0-9a-f]{2}")
_LINK = re.compile(r"""(?i)href[ ]{0,9}=[ ]{0,9}["']([^"'<>]{1,2048})["']""")
"""In a page of a web server. What it matches is bounded, so that no page takes long."""
_CHECK = "check the address"
_REFUSED = (401, 403)
_ALIKE = 0.5
"""From where on one scheme may be meant by another: s4 is that much like s3."""


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
        listed = _walk(files, folder, budget)
    found: dict[str, int | None] = {}
    for path, size in listed:
        budget.check()
        budget.count_file()
        # From the end, because a file system may put something before what it was asked for.
        shard, _, name = "/".join(path.split("/")[-2:]).rpartition("/")
        if shard == name[:2] and names.fullmatch(name):
            found[name] = size
    return found


def _walk(files: Any, folder: str, budget: Budget) -> Iterator[tuple[str, int | None]]:
    try:
        inside = _list_folder(files, folder, budget)
    except NotADirectoryError as error:
        raise FileNotFoundError(folder) from error
    shards = {name for name, _, is_folder in inside if is_folder and _SHARD.fullmatch(name)}
    for shard in sorted(shards):
        with suppress(FileNotFoundError):  # it was removed meanwhile
            for name, size, is_folder in _list_folder(files, f"{folder.rstrip('/')}/{shard}", budget):
                if not is_folder:
                    yield f"{shard}/{name}", size


def _list_folder(files: Any, folder: str, budget: Budget) -> Iterator[tuple[str, int | None, bool]]:
    """Returns name and size of what is in a folder, and whether it is one."""
    if get_protocols(files) & {"http", "https"}:
        return _read_page(files, folder, budget)
    found = files.ls(folder, detail=True)
    return ((_last(about["name"]), about.get("size"), about["type"] == "directory") for about in found)


def _read_page(files: Any, folder: str, budget: Budget) -> Iterator[tuple[str, None, bool]]:
    """Does the same with a page of a web server, of which fsspec would keep whatever is sent."""
    with _open_page(files, folder) as page:
        text = budget.read(page).decode(errors="replace")
    for found in _LINK.finditer(text):
        link = unquote(re.split("[?#]", found[1])[0])
        yield _last(link), None, link.endswith("/")


def _open_page(files: Any, folder: str) -> Any:
    """Returns a page of a web server, to be read as it comes. The size keeps fsspec from asking for it first."""
    return files.open(f"{folder.rstrip('/')}/", "rb", block_size=0, size=1)


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def find_absence(files: Any, root: str, url: str, *, make: bool) -> str | None:
    """Returns what is missing of a location, and what to do; None if it is there.

    Args:
        files: the file system.
        root: the location in it.
        url: that names the location.
        make: whether writing would make its last folder.

    Raises:
        Exception: whatever the file system raises.
    """
    kinds = get_protocols(files)
    if "memory" in kinds:
        return None
    if kinds & {"file", "local"}:
        return _local_absence(root, url, make)
    if kinds & {"http", "https"}:
        return _web_absence(files, root)
    if kinds & OBJECT_STORES:
        bucket = root.partition("/")[0]
        seen = files.exists(root) or files.exists(bucket)
        return None if seen else f"there is no bucket {bucket} that can be seen from here: make it, or {_CHECK}"
    above = root.rstrip("/").rpartition("/")[0]
    seen = files.exists(root) or (make and files.exists(above))
    return None if seen else f"there is no such folder: make it, or {_CHECK}"


def _local_absence(path: str, url: str, make: bool) -> str | None:
    if os.path.isdir(path):
        return None
    if os.path.lexists(path):
        return f"it is no folder: {_CHECK}"
    if "://" not in url and _SCHEME.match(url):
        return "as it is written it is a path, and there is none: an address is written as in s3://bucket/folder"
    above = os.path.dirname(path.rstrip("/"))
    if not make:
        return f"there is no such folder: {_CHECK}"
    return None if os.path.isdir(above) else f"there is no folder {above}: make it, or {_CHECK}"


def _web_absence(files: Any, root: str) -> str | None:
    try:
        with _open_page(files, root):
            pass
    except FileNotFoundError:
        return f"its server knows no such folder: {_CHECK}"
    return None


def advice(scheme: str, error: BaseException) -> str:
    """Returns what to do about an error of a file system, after a colon; empty if nobody knows.

    Args:
        scheme: of the URL.
        error: what was raised.
    """
    if isinstance(error, ImportError) and scheme in _EXTRAS:
        package, extra = _EXTRAS[scheme]
        return f': it needs the package {package}, pip install "fusioncache[{extra}]"'
    if isinstance(error, ValueError) and str(error).startswith("Protocol not known"):
        return f": {_CHECK}{_guess_scheme(scheme)}"
    if isinstance(error, PermissionError) or getattr(error, "status", None) in _REFUSED:
        return ": check the credentials, and that they may do this"
    unreached = isinstance(error, ConnectionError | TimeoutError | socket.gaierror)
    if unreached or "connect" in type(error).__name__.lower():
        return f": {_CHECK}, and that something answers there"
    return ""


def _guess_scheme(scheme: str) -> str:
    from fsspec.registry import known_implementations

    near = get_close_matches(scheme, [*_EXTRAS, *known_implementations], 1, _ALIKE)
    return f", {near[0]}:// may be meant" if near else ""
