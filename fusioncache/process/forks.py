"""What a forked child does before it uses what its parent had in memory.

A fork copies memory and of all threads only the one that forks. Locks that the others held would stay locked for ever,
and what they were at would stay half done. So every lock of the package is made here, and every object with more than a
lock to set right says so here.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Inherited(Protocol):
    """An object that a child takes over from its parent."""

    def after_fork(self) -> None:
        """Called in the child, when locks work again. What was going on in other threads will never end."""


def lock() -> threading.RLock:
    """Returns a lock between threads that in a forked child is free, unless the thread that forked holds it.

    It is one that its thread may take again: only such a lock knows who holds it.
    """
    new = threading.RLock()
    locks.add(new)
    return new


def register(thing: Inherited) -> None:
    """Registers an object whose ``after_fork`` is called in forked children, in no order, for as long as it lives."""
    _inherited.add(thing)


# Of the process, as its threads are.
locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()


def after_fork() -> None:
    """Frees the locks in a forked child, and has every object that is registered set itself right."""
    for each in list(locks):
        # As the threading module does with its own locks; there is no public name for either.
        if not each._is_owned():  # type: ignore[attr-defined]
            each._at_fork_reinit()  # type: ignore[attr-defined]
    for thing in list(_inherited):  # all of them kept alive until the last is done
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=after_fork)
