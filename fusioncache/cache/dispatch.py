"""The hot path: from a call's arguments to the function compiled for their layout.

Closures, because every attribute that is looked up here is paid for in every call of every region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusioncache.backends.api import Run
from fusioncache.ir import Graph, NumberType, TensorType
from fusioncache.ir.ops import shaping_inputs

_MOST_LAYOUTS = 1024

Begin = Callable[[Sequence[Any], tuple[int, ...] | None], tuple[Run, Sequence[Any]]]
"""The function for arguments of a new layout, and what it returns for these. Takes the arities, where there are any."""

Dispatcher = Callable[..., Sequence[Any]]
"""Takes a template's arguments and returns its outputs."""


def make_dispatcher(graph: Graph, *, takes_arities: bool, begin: Begin) -> Dispatcher:
    """Makes the function that a trace calls: it finds what fits the layout of its arguments, or begins, and runs it."""
    if takes_arities or graph.sizes or any(isinstance(type_, NumberType) for type_ in graph.inputs):
        return _dispatch_by_all(graph, takes_arities, begin)
    if all(_strides_follow_from_contiguity(type_) for type_ in graph.inputs):
        return _dispatch_by_contiguity(begin)
    return _dispatch_by_strides(begin)


def _strides_follow_from_contiguity(type_: Any) -> bool:
    """Tells whether contiguity says all: a dimension of size 0 or 1 may have any stride in a contiguous tensor."""
    return isinstance(type_, TensorType) and all(isinstance(size, int) and size > 1 for size in type_.shape)


def _dispatch_by_contiguity(begin: Begin) -> Dispatcher:
    """Asks whether all tensors are contiguous, which costs half as much as their strides."""
    import torch

    is_contiguous, stride = torch.Tensor.is_contiguous, torch.Tensor.stride
    contiguous: dict[int, Run] = {}
    runs: dict[Any, Run] = {}

    def dispatch(*args: Any) -> Sequence[Any]:
        if all(map(is_contiguous, args)):
            run = contiguous.get(len(args))
            if run is None:
                contiguous[len(args)], results = begin(args, None)
                return results
            return run(args)
        layout = tuple(map(stride, args))
        run = runs.get(layout)
        return run(args) if run else _remember(runs, layout, begin(args, None))

    return dispatch


def _dispatch_by_strides(begin: Begin) -> Dispatcher:
    import torch

    stride = torch.Tensor.stride
    runs: dict[Any, Run] = {}

    def dispatch(*args: Any) -> Sequence[Any]:
        layout = tuple(map(stride, args))
        run = runs.get(layout)
        return run(args) if run else _remember(runs, layout, begin(args, None))

    return dispatch


def _dispatch_by_all(graph: Graph, takes_arities: bool, begin: Begin) -> Dispatcher:
    """Takes symbolic sizes, numbers among the inputs (they come first), and arities in front of these."""
    import torch

    numbers = sum(isinstance(type_, NumberType) for type_ in graph.inputs)
    shaping = shaping_inputs(graph)
    stride, size = torch.Tensor.stride, torch.Tensor.size
    runs: dict[Any, Run] = {}

    def dispatch(*args: Any) -> Sequence[Any]:
        arities, args = (args[0], args[1:]) if takes_arities else (None, args)
        tensors = args[numbers:]
        layout = (arities, *map(stride, tensors), *map(size, tensors), *[args[index] for index in shaping])
        run = runs.get(layout)
        return run(args) if run else _remember(runs, layout, begin(args, arities))

    return dispatch


def _remember(runs: dict[Any, Run], layout: Any, begun: tuple[Run, Sequence[Any]]) -> Sequence[Any]:
    if len(runs) >= _MOST_LAYOUTS:
        runs.clear()
    runs[layout], results = begun
    return results
