"""The call before a capture: code that a CUDA graph may not capture gives way to code that it may.

A graph holds kernels by the handles that they had when it was captured. nvFuser compiles code for any sizes again when
a larger block is asked for, and unloads what it had. So such code is never captured. In the call before a capture each
region is asked for code of its own size, which nothing unloads, and says whether there is some.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

WAITING = "code for any sizes, until code for these sizes is compiled"
"""Why a program is not captured yet."""


class Preparation:
    """One call before a capture.

    Attributes:
        waiting: how many regions of the call ran code that may not be captured.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting = 0


_current: ContextVar[Preparation | None] = ContextVar("fusioncache_preparation", default=None)

find_preparation = _current.get
"""Returns the preparation that this call belongs to; None if nothing is about to be captured."""


@contextmanager
def prepare() -> Iterator[Preparation]:
    """Makes the calls of this thread inside the block a preparation, and gives that."""
    token = _current.set(preparation := Preparation())
    try:
        yield preparation
    finally:
        _current.reset(token)
