"""Processes that get ready beside each other and then measure one after the other, with nothing beside them.

While a process gets ready it shares a lock with the others. Once it is ready it lets go of that and asks for the lock
alone, which it gets when nobody gets ready or measures any more. What a process held that died is free at once.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import batched
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import processes
from benchmarks.common.processes import ProcessFailed

_DESCRIPTOR = "FUSIONCACHE_TURN"
"""Names a process's own descriptor of the lock."""

_FILE = "FUSIONCACHE_TURNS"
"""Names a file to lock, for benchmarks that are started together and take turns with each other."""


def call_in_turns(
    target: str | Path, arguments: Sequence[Any], at_once: int, limit: float | None = None
) -> Iterator[Any | ProcessFailed]:
    """Runs a function once for each argument, as ``processes.call`` does, and yields the answers in order.

    Args:
        target: as for ``processes.call``; it measures in ``turn``.
        arguments: of the function.
        at_once: how many processes get ready beside each other.
        limit: the seconds after which a process is ended, its waiting for the others among them.

    Yields:
        An answer, or what happened to the process instead.
    """
    if at_once == 1 and _FILE not in os.environ:
        yield from (_call(target, limit, argument) for argument in arguments)
        return
    with TemporaryDirectory(prefix="fusioncache-turns-") as directory:
        path = Path(os.environ.get(_FILE) or Path(directory, "lock"))
        path.touch()
        for some in batched(arguments, at_once):
            with ExitStack() as stack, ThreadPoolExecutor(len(some)) as pool:
                # All of them are shared before any process starts, so that none is the first to be ready.
                shared = [_share(path) for _ in some]
                for descriptor in shared:
                    stack.callback(os.close, descriptor)
                yield from pool.map(partial(_call_with, target, limit), some, shared)


@contextmanager
def turn() -> Iterator[None]:
    """Waits until every process is ready, and those whose turn it was are done. Waits for none without others."""
    descriptor = int(os.environ.get(_DESCRIPTOR, -1))
    if descriptor < 0:
        yield
        return
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _share(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _call_with(target: str | Path, limit: float | None, argument: Any, descriptor: int) -> Any | ProcessFailed:
    variables = {_DESCRIPTOR: str(descriptor)}
    try:
        return _call(target, limit, argument, environment=variables, inherited=(descriptor,))
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # of a process that ended before it was ready


def _call(target: str | Path, limit: float | None, argument: Any, **options: Any) -> Any | ProcessFailed:
    try:
        return processes.call(target, argument, limit=limit, **options)
    except ProcessFailed as failure:
        return failure
