"""Whether the location that a URL of fsspec names is there, what is in it, and what to do where it cannot be used."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

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
_CHECK = "check the address"
_REFUSED = (401, 403)
_ALIKE = 0.5
"""From where on one scheme may be meant by another: s4 is that much like s3."""


def get_protocols(files: Any) -> set[str]:
    """Returns the schemes of a file system."""
    return {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)


def read_sizes_below(files: Any, folder: str) -> dict[str, int | None]:
    """Returns the bytes of all files in the folders of a folder, as far as they are known, by folder and name.

    Raises:
        FileNotFoundError: if there is no such folder.
        Exception: whatever the file system raises.
    """
    if get_protocols(files) & {*OBJECT_STORES, "memory"}:
        found = files.find(folder, detail=True).items()
    else:
        # Not find, which leaves out what fails: a location that gave no answer would be taken for an empty one.
        found = _walk(files, folder)
    # From the end, because a file system may put something before what it was asked for.
    return {"/".join(name.split("/")[-2:]): about.get("size") for name, about in found}


def _walk(files: Any, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        shards = files.ls(folder, detail=True)
    except NotADirectoryError as error:
        raise FileNotFoundError(folder) from error
    for about in shards:
        shard = about["name"].rstrip("/")
        if about["type"] != "directory" or not _SHARD.fullmatch(shard.rpartition("/")[2]):
            continue
        try:
            inside = files.ls(shard, detail=True)
        except FileNotFoundError:
            continue  # it was removed meanwhile
        yield from ((file["name"], file) for file in inside if file["type"] != "directory")


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
        files.ls(f"{root.rstrip('/')}/", detail=False)
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
