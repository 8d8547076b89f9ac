"""A size that is used again gets a function of its own, compiled by the pool or, before a capture, in this process.

Code for any sizes may be slower than code for one: TorchInductor divides a small region's work among threads where it
does not know that it is small, and nvFuser looks at each argument in every call. And of nvFuser only code for one set
of sizes can be stored: it is asked for at the first call, so that a later process with these sizes compiles nothing.

nvFuser's code for any sizes may also not be captured in a CUDA graph: nvFuser owns its kernels, and unloads one when it
compiles it again for a larger block. Where a call is captured, or is the one before a capture, the region runs code of
its own size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from fusioncache.backends.api import Run
from fusioncache.backends.torch_settings import forbids_changes, is_capturing
from fusioncache.process import forks
from fusioncache.process.preparation import find_preparation

logger = logging.getLogger("fusioncache")

OFTEN = 100
"""The call with one layout that asks for a function of its own where code for any sizes is stored."""
SOON = 8
"""The same where code for any sizes is not stored: a later process would compile it again."""
AT_ONCE = 4
"""How many sizes of such code get a function of their own at their first call."""
MOST, MOST_UNSTORED = 4, 64
"""How many sizes of code for any sizes get a function of their own: where it is stored, and where it is not."""
_BETWEEN = 5
"""The number of calls between two looks at whether the pool has compiled it."""


class Allowance:
    """Counts the sizes of one general function that got a function of their own."""

    def __init__(self) -> None:
        self._taken = 0
        self._lock = forks.lock()

    def take(self, most: int) -> bool:
        """Takes one; False if as many as ``most`` are taken."""
        with self._lock:
            has_one = self._taken < most
            self._taken += has_one
            return has_one

    def is_below(self, most: int) -> bool:
        """True if fewer are taken than this."""
        return self._taken < most


@dataclass(frozen=True, slots=True)
class Order:
    """A function for one size that may take the place of a general one.

    Attributes:
        place: queues the compile in the pool; False if there is nothing to compile.
        is_done: True if the pool has compiled it, or will not.
        fetch: returns the stored function for these arguments; None if there is none.
        build: returns the function for these arguments, compiled in this process if it is not stored.
        build_apart: returns a function for these arguments while a CUDA graph is captured.
        after: the number of the call that places the order.
        captures: whether the general function may be captured in a CUDA graph.
    """

    place: Callable[[], bool]
    is_done: Callable[[], bool]
    fetch: Callable[[Sequence[Any]], Run | None]
    build: Callable[[Sequence[Any]], Run]
    build_apart: Callable[[Sequence[Any]], Run]
    after: int = OFTEN
    captures: bool = True


def replace_if_reused(run: Run, order: Order) -> Run:
    """Returns a function that does as ``run``, until the function of its own size takes that one's place.

    If anything goes wrong, ``run`` stays.
    """
    size = _Size(run, order)
    return size.call if order.captures else size.call_unless_captured


class _Size:
    """One size of a general function: counts its calls, and replaces the function."""

    __slots__ = ("_apart", "_calls", "_due", "_is_placed", "_lock", "_order", "_own", "_run")

    def __init__(self, run: Run, order: Order):
        self._run = run
        self._order = order
        self._calls, self._due = 0, float(order.after)
        self._is_placed = False
        self._own: Run | None = None
        self._apart: Run | None = None
        self._lock = forks.lock()

    def call(self, args: Sequence[Any]) -> Sequence[Any]:
        """Runs the function, and looks for its own one where that is due."""
        self._calls += 1
        if self._calls >= self._due and not forbids_changes():
            try:
                self._look(args)
            except Exception as error:  # there is a function
                logger.info("a size that is used often gets no function of its own", exc_info=error)
        return self._run(args)

    def call_unless_captured(self, args: Sequence[Any]) -> Sequence[Any]:
        """Does as ``call``, and runs the function of its own size where a CUDA graph captures the call or soon will."""
        if self._own is not None:
            return self._own(args)
        if is_capturing():
            return self._find_apart(args)(args)
        preparation = find_preparation()
        if preparation is not None and not self._settle(args):
            preparation.waiting += 1
        return self.call(args)

    def _look(self, args: Sequence[Any]) -> None:
        self._due = inf  # for other threads, and if something fails
        self._is_placed = self._is_placed or self._order.place()
        if self._is_placed and self._order.is_done():
            self._replace(self._order.fetch(args))
        elif self._is_placed:
            self._due = self._calls + _BETWEEN

    def _replace(self, own: Run | None) -> None:
        if own is not None:
            self._run = self._own = own

    def _settle(self, args: Sequence[Any]) -> bool:
        """Replaces the function now; False if it has to wait for the pool, or cannot be replaced."""
        if forbids_changes():
            return False
        try:
            self._is_placed = self._is_placed or self._order.place()
            if self._is_placed and not self._order.is_done():
                return False
            with self._lock:
                if self._own is None:
                    self._replace(self._order.build(args))
        except Exception as error:  # the program runs without a graph
            logger.info("a size gets no function of its own before a capture", exc_info=error)
            return False
        return True

    def _find_apart(self, args: Sequence[Any]) -> Run:
        """Returns the function for a call that something else captures, such as a graph of the user's."""
        with self._lock:
            if self._apart is None:
                self._apart = self._order.build_apart(args)
            return self._apart
