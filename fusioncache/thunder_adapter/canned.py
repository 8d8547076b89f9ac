"""A small forward and backward, by which an unknown Thunder shows whether regions can be read out of its traces."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from fusioncache.thunder_adapter.names import find_missing


@cache
def find_missing_name() -> str | None:
    """Returns why the names that regions are read with cannot be found; None if all are there."""
    missing = find_missing("core")
    return f"it lacks {', '.join(missing[:3])}" if missing else None


@cache
def find_problem() -> str | None:
    """Returns why this Thunder does something else than what regions are read from; None if nothing was noticed.

    It looks for the names that the core uses, and compiles a function of two tensors on the CPU.
    """
    try:
        return find_missing_name() or next(_find_differences(), None)
    except ImportError as error:
        return f"it lacks a name: {error}"
    except Exception as error:  # whatever is otherwise in this Thunder, it is not what we know
        return f"a small function fails in it: {type(error).__name__}: {error}"


def _find_differences() -> Iterator[str]:
    import thunder
    import torch

    from fusioncache.thunder_adapter.api import PrimIDs, TraceCtx, TraceTag, Transform

    around = (PrimIDs.UNPACK_TRIVIAL, PrimIDs.DEL, PrimIDs.RETURN)
    traces: list[Any] = []

    class Watch(Transform):
        def transform_trace_post_optimization(self, trace: Any, **_: Any) -> Any:
            traces.append(trace)
            return trace

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * weight) + x

    inputs = [torch.linspace(-1, 1, 6).reshape(2, 3), torch.linspace(1, 2, 6).reshape(2, 3).requires_grad_()]
    # Without executors that fuse, results are torch's bit for bit.
    found = thunder.jit(function, executors=[], transforms=[Watch()])(*inputs)
    expected = function(*inputs)
    if not torch.equal(found, expected):
        yield "a small function has another result in it"
    gradients = [torch.autograd.grad(result.sum(), inputs[1])[0] for result in (found, expected)]
    if not torch.allclose(*gradients, rtol=1e-6):
        yield "a small function has another gradient in it"
    if not all(isinstance(trace, TraceCtx) for trace in traces):
        yield "its transforms are not given traces"
    tags = [[tag for tag in (TraceTag.AUGMENTED_FORWARD, TraceTag.BACKWARD) if tag in trace.tags] for trace in traces]
    if tags != [[TraceTag.AUGMENTED_FORWARD], [TraceTag.BACKWARD]]:
        yield "its transforms are not given a forward trace and then a backward one"
    names = [call.sym.name for call in traces[0].bound_symbols if call.sym.id not in around]
    if names != ["mul", "tanh", "add"]:
        yield f"its forward trace of a small function has other operations: {', '.join(names)}"
