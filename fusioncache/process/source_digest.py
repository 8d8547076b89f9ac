"""The digest of a package's sources: what a version alone does not tell."""

from __future__ import annotations

import hashlib
import os
import time
from functools import cache

_LEFT_OUT = frozenset({"__pycache__", "tests", "benchmarks"})
_STARTED = time.time()
"""When this module was imported, which the transform does."""


@cache
def digest_sources(folder: str) -> str:
    """Returns the digest of all Python sources in a folder, once in a process: what is imported does not change.

    Raises:
        ValueError: if one is younger than this process, as then it may not be what was imported.
    """
    digest = hashlib.blake2b(digest_size=20)
    for directory, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        for name in sorted(files):
            if name.endswith(".py"):
                path = os.path.join(directory, name)
                inside = path[len(folder) + 1 :]
                with open(path, "rb", buffering=0) as file:
                    if os.fstat(file.fileno()).st_mtime > _STARTED:
                        raise ValueError(f"{inside} was changed after it was imported")
                    content = file.read()
                digest.update(f"{inside} {len(content)}\n".encode())
                digest.update(content)
    return digest.hexdigest()
