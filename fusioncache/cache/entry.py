"""The hot path: from a call's arguments to the function compiled for their layout.

Closures, because every attribute that is looked up here is paid for in every call of every region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusioncache.cache.program import Run
from fusioncache.ir import Graph, NumberType, TensorType

_MOST_LAYOUTS = 1024

Prepare = Callable[[Sequence[Any], tuple[int, ...] | None], Run]
"""The function for arguments of a new layout. Takes the arities too, where the call has them."""

Entry = Callable[..., Sequence[Any]]


def make_entry(graph: Graph, *, takes_arities: bool, prepare: Prepare) -> Entry:
    """A function that takes a template's arguments, finds or prepares what fits their layout, and runs it."""
    if takes_arities or graph.sizes or any(isinstance(type_, NumberType) for type_ in graph.inputs):
        return _entry_by_all(graph, takes_arities, prepare)
    if all(_strides_follow_from_contiguity(type_) for type_ in graph.inputs):
        return _entry_by_contiguity(prepare)
    return _entry_by_strides(prepare)


def _strides_follow_from_contiguity(type_: Any) -> bool:
    """A dimension of size 0 or 1 may have any stride in a contiguous tensor."""
    return isinstance(type_, TensorType) and all(isinstance(size, int) and size > 1 for size in type_.shape)


def _entry_by_contiguity(prepare: Prepare) -> Entry:
    """Asks whether all tensors are contiguous, which costs half as much as their strides."""
    import torch

    is_contiguous, stride = torch.Tensor.is_contiguous, torch.Tensor.stride
    contiguous: dict[int, Run] = {}
    runs: dict[Any, Run] = {}

    def entry(*args: Any) -> Sequence[Any]:
        if all(map(is_contiguous, args)):
            run = contiguous.get(len(args))
            if run is None:
                run = contiguous[len(args)] = prepare(args, None)
            return run(args)
        layout = tuple(map(stride, args))
        run = runs.get(layout)
        return (run or _remember(runs, layout, prepare(args, None)))(args)

    return entry


def _entry_by_strides(prepare: Prepare) -> Entry:
    import torch

    stride = torch.Tensor.stride
    runs: dict[Any, Run] = {}

    def entry(*args: Any) -> Sequence[Any]:
        layout = tuple(map(stride, args))
        run = runs.get(layout)
        return (run or _remember(runs, layout, prepare(args, None)))(args)

    return entry


def _entry_by_all(graph: Graph, takes_arities: bool, prepare: Prepare) -> Entry:
    """For symbolic sizes, numbers among the inputs (they come first), and arities in front of these."""
    import torch

    numbers = sum(isinstance(type_, NumberType) for type_ in graph.inputs)
    stride, size = torch.Tensor.stride, torch.Tensor.size
    runs: dict[Any, Run] = {}

    def entry(*args: Any) -> Sequence[Any]:
        arities, args = (args[0], args[1:]) if takes_arities else (None, args)
        tensors = args[numbers:]
        layout = (arities, *map(stride, tensors), *map(size, tensors))
        run = runs.get(layout)
        return (run or _remember(runs, layout, prepare(args, arities)))(args)

    return entry


def _remember(runs: dict[Any, Run], layout: Any, run: Run) -> Run:
    if len(runs) >= _MOST_LAYOUTS:
        runs.clear()
    runs[layout] = run
    return run
