"""How many processes compile beside the one that traces."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from fusioncache.process.settings import JOBS

MOST = 4
"""With more the gain is small: a first step has some ten templates, of which one or two take half as long as all."""
_CORES_OF_A_RANK = {"nvfuser": 3, "inductor": 4}
"""How many cores a rank has to have, by backend, before one process more pays. A C++ compiler takes memory as well."""
_RANKS_HERE = "LOCAL_WORLD_SIZE"


def choose_jobs(asked: int | None, backend: str) -> int:
    """Returns how many processes are to compile beside this one.

    Args:
        asked: what the user asked for; None asks the environment, and if that does not say, it is what pays.
        backend: that compiles most.

    Raises:
        TypeError: if ``asked`` is no number.
        ValueError: if it is less than 0, or the environment says something else than a number.
    """
    if asked is not None and (not isinstance(asked, int) or isinstance(asked, bool)):
        raise TypeError(f"jobs must be a number of processes or None, got {asked!r}")
    if asked is not None and asked < 0:
        raise ValueError(f"jobs must be at least 0, got {asked}")
    said = JOBS.read()
    if not can_have_crew():
        return 0
    if asked is not None:
        return asked
    return int(said) if said else _find_what_pays(backend)


def can_have_crew() -> bool:
    """Tells whether there can be other processes that work for this one: they need sockets that are inherited."""
    return os.name == "posix" and bool(sys.executable)


def _find_what_pays(backend: str) -> int:
    """Returns how many processes pay: as many as there are cores for, but for those of this and other ranks."""
    needed = _CORES_OF_A_RANK.get(backend)
    if needed is None:
        return 0
    return max(0, min(MOST, (count_cores() // _count_ranks() - 1) // needed))


def count_cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _count_ranks() -> int:
    """Returns how many ranks of this process's job are on this host."""
    with suppress(ValueError):
        return max(1, int(os.environ.get(_RANKS_HERE, "1")))
    return 1
