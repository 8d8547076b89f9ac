"""Waits for the processes that compile beside this one, for points in which their start does not count."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_REST_SECONDS = 1.0
_MOST_SECONDS = 60.0


def wait_for_crew() -> None:
    """Waits until none of the processes that this one started computes any more. Returns at once if there are none."""
    deadline = time.monotonic() + _MOST_SECONDS
    before, ticks = -1, sum(_list_ticks(os.getpid()))
    while ticks != before and time.monotonic() < deadline:
        time.sleep(_REST_SECONDS)
        before, ticks = ticks, sum(_list_ticks(os.getpid()))


def _list_ticks(parent: int) -> Iterator[int]:
    """Returns the processor's time that each descendant of a process has had."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name, in parentheses, may have anything in it.
            fields = file.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                yield int(fields[11]) + int(fields[12])
                yield from _list_ticks(int(file.parent.name))
