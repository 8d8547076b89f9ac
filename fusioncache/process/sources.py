"""Digests of packages' sources, which a version does not identify, and source lines of functions without a file."""

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
"""When this module was imported. The transform imports it."""


@cache
def digest_sources(folder: str) -> str:
    """Returns the digest of all Python sources in a folder. Computed once per process: imported code does not change.

    Raises:
        ValueError: if a file changed after ``_STARTED``, because then it may differ from the imported code.
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
    """Registers the source lines of a function in ``linecache`` for the function's lifetime.

    Args:
        function: the function.
        file: the file name of its code object.
        find_text: returns the text of that file.
    """
    linecache.cache[file] = (find_text,)  # called when lines are read, which rarely happens
    weakref.finalize(function, linecache.cache.pop, file, None).atexit = False
