"""Sources: the digest of a package's, which a version does not tell, and the lines of functions that are in no file."""

from __future__ import annotations

import hashlib
import linecache
import os
import time
import weakref
from collections.abc import Callable
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


def show_lines(function: Callable[..., object], file: str, find_text: Callable[[], str]) -> None:
    """Has ``linecache`` know the lines of a function for as long as it lives.

    Args:
        function: it.
        file: the name of the file that its code seems to come from.
        find_text: returns the text of that file.
    """
    linecache.cache[file] = (find_text,)  # asked when the lines are looked at: those of most texts never are
    weakref.finalize(function, linecache.cache.pop, file, None).atexit = False
