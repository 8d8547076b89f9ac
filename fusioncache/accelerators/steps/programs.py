"""One of Thunder's programs, called without what is around each of its functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusioncache.accelerators.steps.autograd import Channel, connect
from fusioncache.accelerators.steps.decorators import find_inner, with_quick_clearing

Program = Callable[[Sequence[Any], Sequence[Any]], Any]
"""Takes what a prologue hands to the computation and to the epilogue, and returns what the model does."""

_is_grad_enabled, _set_grad_enabled = torch.is_grad_enabled, torch._C._set_grad_enabled


def make_program(entry: Any, statistics: Any, clock: Callable[[], int]) -> Program:
    """Returns what runs the program of one of Thunder's entries behind its prologue.

    Autocast must be off where it is called.

    Args:
        entry: Thunder's.
        statistics: a weak reference to Thunder's, which get the time of the computation.
        clock: returns nanoseconds.
    """
    computation: Callable[..., Any] = find_inner(entry.computation_fn) or entry.computation_fn
    backward, hides = entry.backward_fn, bool(entry.return_none_instead_of_grads)
    inner = find_inner(backward) if backward else None
    quick = None if inner is None else with_quick_clearing(inner)
    finish = _make_epilogue(entry.epilogue_fn)

    def run(inputs: Sequence[Any], for_epilogue: Sequence[Any]) -> Any:
        was_enabled, counts = _is_grad_enabled(), statistics()
        _set_grad_enabled(False)
        counts.last_trace_host_execution_start = clock()
        try:
            results = computation(*inputs)
        finally:
            counts.last_trace_host_execution_stop = clock()
            _set_grad_enabled(was_enabled)
        if backward:
            made, (saved, others) = results
            channel = Channel(backward, quick, others, hides=hides)
            connect(channel, made["flat_args"], made["flat_output"], saved)
            results = made["output"]
        return finish(*for_epilogue, *results)

    return run


def _make_epilogue(epilogue: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what an epilogue does; one that only hands on what it is given needs nothing around it."""
    inner = find_inner(epilogue)
    if inner is None or inner.__code__.co_names:
        return epilogue
    return inner
