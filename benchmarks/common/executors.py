"""How Thunder is set up to use one backend, with and without fusioncache alike."""

from __future__ import annotations

from typing import Any


def executors(backend: str) -> list[Any]:
    """The executors for ``thunder.jit``, in all modes, so that only the transform makes a difference."""
    from thunder.extend import get_always_executors, get_default_executors, get_executor

    import fusioncache
    from fusioncache.trace.executor import NAME

    if backend == "nvfuser":
        return fusioncache.executors()
    others = [executor for executor in get_default_executors() if executor not in get_always_executors()]
    return [*(executor for executor in others if executor.name != "nvfuser"), get_executor(NAME)]


def compile_regions_with(backend: str) -> None:
    """Lets fusioncache's executor use this backend without the transform, in place of what it would choose."""
    import thunder  # noqa: F401  # before the executor, which it registers

    from fusioncache.trace import executor

    if backend != "nvfuser":
        executor.best_backend = lambda device: backend
