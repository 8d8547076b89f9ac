"""A size that is used again and again gets a function of its own, which others compile beside this process.

Code for any sizes may be slower than code for one: TorchInductor divides a small region's work among threads where it
does not know that it is small. And of nvFuser only code for one set of sizes can be kept for later processes: there it
is asked for at the first call, so that a later process with these very sizes compiles nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from fusioncache.backends.api import Run
from fusioncache.backends.torch_settings import forbids_changes
from fusioncache.process import forks

logger = logging.getLogger("fusioncache")

OFTEN = 100
"""After how many calls with the same layout a function of its own is asked for: fewer, and a size is not used much."""
_BETWEEN = 20
"""How many calls there are between two looks at whether it is there."""


class Allowance:
    """How many more sizes of one general function may get a function of their own.

    Args:
        most: so many.
    """

    def __init__(self, most: int = 4):
        self._left = most
        self._lock = forks.lock()

    @property
    def is_empty(self) -> bool:
        """Whether none is left."""
        return not self._left

    def take(self) -> bool:
        """Takes one, if there is one left."""
        with self._lock:
            has_one = self._left > 0
            self._left -= has_one
            return has_one


@dataclass(frozen=True, slots=True)
class Order:
    """One function that is to be compiled beside this process.

    Attributes:
        place: has it compiled, and returns whether somebody will.
        is_done: tells whether somebody has, or nobody ever will.
        fetch: returns what was compiled, for these arguments; None if nothing was.
        after: the call that places it.
    """

    place: Callable[[], bool]
    is_done: Callable[[], bool]
    fetch: Callable[[Sequence[Any]], Run | None]
    after: int = OFTEN


def replace_if_reused(run: Run, order: Order) -> Run:
    """Makes a function that, called often, has another one compiled, and is that one as soon as it is there.

    Whatever goes wrong, it stays what it is.
    """
    calls, due, placed = 0, float(order.after), False

    def look(args: Sequence[Any]) -> None:
        nonlocal run, due, placed
        due = inf  # for the other threads, and if something fails
        if not placed:
            placed = order.place()
            due = calls + _BETWEEN if placed else inf
        elif order.is_done():
            run = order.fetch(args) or run
        else:
            due = calls + _BETWEEN

    def call(args: Sequence[Any]) -> Sequence[Any]:
        nonlocal calls
        calls += 1
        if calls >= due and not forbids_changes():
            try:
                look(args)
            except Exception as error:  # whatever it is, there is a function
                logger.info("a size that is used often gets no function of its own", exc_info=error)
        return run(args)

    return call
