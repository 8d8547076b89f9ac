"""Which executors Thunder is to use, and ours among those that it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusioncache.backends.registry import problem
from fusioncache.process.thunder_version import untried

if TYPE_CHECKING:
    from thunder.extend import Executor

NAME = "fusioncache"


def register() -> Executor:
    """Makes our executor known to Thunder by its name, and nvFuser's direct bindings usable.

    In a Thunder that was not tried, what has its name claims nothing.
    """
    from thunder.extend import OperatorExecutor, register_executor

    if untried():
        return register_executor(OperatorExecutor(NAME))
    from fusioncache.trace.executor import FusionCacheExecutor

    problem("nvfuser", "cuda")
    return register_executor(FusionCacheExecutor())


def executors() -> list[Executor]:
    """The executors for ``thunder.jit(..., executors=...)``.

    Where nvFuser works these are Thunder's own, with nvFuser making the regions; elsewhere fusioncache's executor makes
    them.
    """
    from thunder.extend import get_always_executors, get_default_executors, get_executor

    others = [executor for executor in get_default_executors() if executor not in get_always_executors()]
    if untried() or problem("nvfuser", "cuda") is None:
        return others
    own = get_executor(NAME) or register()
    return [*(executor for executor in others if executor.name != "nvfuser"), own]
