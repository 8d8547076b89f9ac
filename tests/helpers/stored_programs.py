"""Models compiled as by one process after the other, over one directory of stored programs."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import fusioncache

_TOOL = 5
"""A tool ID of ``sys.monitoring`` that debuggers, profilers and coverage do not use."""


def compile_anew(
    model: Any, directory: Path, backend: str = "eager", *, jit: Mapping[str, Any] | None = None, **options: Any
) -> tuple[Any, Any]:
    """Compiles a model as a new process does, over a store that others have used. Returns it and its transform."""
    import thunder

    cache = fusioncache.Cache(record=False, store=directory)
    transform = fusioncache.FusionCache(cache=cache, backend=backend, jobs=0, **options)
    jit = {"executors": fusioncache.executors(), **(jit or {})}
    transforms = [transform, *jit.pop("transforms", ())]
    return thunder.jit(model, transforms=transforms, **jit), transform


@contextlib.contextmanager
def without_interpreter() -> Iterator[None]:
    """Makes Thunder's interpreter raise, by monitoring: a patch would replace functions that programs depend on."""
    from thunder.core import interpreter

    monitoring, code = sys.monitoring, interpreter.interpret.__code__

    def fail(*_: Any) -> None:
        raise AssertionError("interpreted: a program was derived that should have been loaded")

    monitoring.use_tool_id(_TOOL, "without_interpreter")
    monitoring.register_callback(_TOOL, monitoring.events.PY_START, fail)
    monitoring.set_local_events(_TOOL, code, monitoring.events.PY_START)
    try:
        yield
    finally:
        monitoring.set_local_events(_TOOL, code, monitoring.events.NO_EVENTS)
        monitoring.register_callback(_TOOL, monitoring.events.PY_START, None)
        monitoring.free_tool_id(_TOOL)


def counts(transform: Any) -> tuple[int, int, dict[str, int]]:
    stats = transform.stats()
    return stats.programs_loaded, stats.programs_made, dict(stats.programs_refused)


class Cell(torch.nn.Module):
    """A model that traces in a fraction of a second; its forward pass goes by an attribute."""

    def __init__(self, size: int = 4, scale: float = 2.0):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)) * self.scale + x


def store_program(
    directory: Path, make: Callable[[], torch.nn.Module] = Cell, **options: Any
) -> tuple[Any, torch.Tensor]:
    """Derives and stores a program. Returns its model and its input."""
    torch.manual_seed(0)
    model, x = make(), torch.randn(3, 4)
    compiled, transform = compile_anew(model, directory, **options)
    compiled(x)
    assert counts(transform) == (0, 1, {})
    return model, x
