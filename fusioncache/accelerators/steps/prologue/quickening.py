"""Puts a faster prologue into the place of Thunder's own, once that was called a few times.

To write one takes as long as some hundred calls of it save. A model that is called once or twice has none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any

from fusioncache.accelerators.steps.prologue.rewriting import rewrite
from fusioncache.ir.errors import Scope, is_declined
from fusioncache.process.collector import without_collector

logger = logging.getLogger("fusioncache")

CALLS = 3
"""Which call of a prologue is the first of the faster one."""

_TIMER = "jit.<locals>.prologue_execution_timer"
"""Thunder's function that makes of a prologue what is timed."""


type Rewrite = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Returns a faster function in place of a prologue, or raises ``Declined``."""


def quicken(prologue: Callable[..., Any], rewrite: Rewrite = rewrite) -> Callable[..., Any]:
    """Returns a function that does what a prologue of Thunder's does, and is faster from a few calls on."""
    current, calls = prologue, 0

    @wraps(prologue)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal current, calls
        if calls < CALLS:
            calls += 1
            if calls >= CALLS:
                current = _try(rewrite, prologue)
        return current(*args, **kwargs)

    return run


def _try(rewrite: Rewrite, prologue: Callable[..., Any]) -> Callable[..., Any]:
    try:
        # A tree of its source is thousands of objects, for which the collector would look through all of the process.
        with without_collector():
            return rewrite(prologue)
    except Exception as error:  # whatever it is, Thunder's own does the same
        if is_declined(error, Scope.PROLOGUE):
            logger.info("a prologue stays as Thunder made it: %s", error)
        else:
            logger.info("a prologue stays as Thunder made it", exc_info=True)
    return prologue


def quicken_last() -> None:
    """Quickens the prologue of what Thunder derives at this moment, in the function with which it takes the time of it.

    Thunder has compiled it before it asks transforms for what they make of the computation.
    """
    from fusioncache.thunder_adapter.api import _compile_data

    _, stats = _compile_data.get()
    timed = getattr(stats, "last_prologue", None)
    if not isinstance(timed, FunctionType) or timed.__qualname__.rpartition(".<locals>.")[0] != _TIMER:
        return
    cells = dict(zip(timed.__code__.co_freevars, timed.__closure__ or (), strict=True))
    cell = cells.get("fn")
    if cell is not None and not hasattr(cell.cell_contents, "__wrapped__"):
        cell.cell_contents = quicken(cell.cell_contents)
