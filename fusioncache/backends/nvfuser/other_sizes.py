"""Kernels for other sizes, compiled when a definition with symbolic extents is, and not in the middle of a later step.

One kernel does for many sizes, but not for all: where there are fewer elements than a GPU works on at a time, nvFuser
takes narrower vectors, and where there are fewer rows than it has multiprocessors, it sums otherwise. It holds Python's
lock while it compiles, so that no thread can do so beside the steps. So as soon as a definition is there it is executed
for sizes that are not far away, twice as large and down to a sixteenth, the next ones first, until that took as long as
its own kernel did. Sizes further away are less likely to come, and some kernels take seconds.

What is executed are zeros of these sizes. Whether the region is one at all with them is asked of torch first, with
tensors that have no memory.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import gcd, prod
from typing import Any

import torch

from fusioncache.backends.api import GeneralFunction, Run
from fusioncache.backends.eager import Eager
from fusioncache.backends.nvfuser.definition import describe_arguments
from fusioncache.ir import GeneralRegion, Ref, TensorType, Value, ValueType

logger = logging.getLogger("fusioncache")

MOST_BYTES = 16 << 20
"""How many bytes the arguments for larger sizes may have. Those for smaller ones take no more than is there."""
_FACTORS = (0.5, 2.0, 0.25, 0.125, 0.0625)
_LEAST = 2
"""Sizes of 1 and 0 are never general."""

Shape = tuple[int, ...]


def compile_for_other_sizes(
    fit: Callable[[Sequence[Value]], Run],
    general: GeneralRegion,
    args: Sequence[Any],
    values: Sequence[Value],
    seconds: float,
) -> int:
    """Executes a definition for other sizes than those of its first arguments, and returns for how many.

    Whatever goes wrong, the definition works for the sizes that it was compiled for.

    Args:
        fit: takes values of the variables, and returns what executes the definition for arguments with these.
        general: what the definition is of.
        args: the first arguments. Nothing writes into them.
        values: of the variables there.
        seconds: that the kernel for these took. When so many more were spent, no other size is tried.
    """
    start, done = time.perf_counter(), 0
    try:
        for other_args, other_values in make_arguments(general, args, values):
            fit(other_values)(other_args)
            done += 1
            if time.perf_counter() - start > seconds:
                break
    except Exception as error:  # as where there is no memory for them
        logger.info("a definition is not compiled for other sizes", exc_info=error)
    return done


def make_arguments(
    general: GeneralRegion, args: Sequence[Any], values: Sequence[Value]
) -> Iterator[tuple[Sequence[Any], Sequence[Value]]]:
    """Yields arguments for other sizes, zeros that lie as the given ones do, and the values of the variables there.

    Args:
        general: a region.
        args: of one of its instances.
        values: of the variables there.
    """
    most = max(MOST_BYTES, sum(arg.nbytes for arg in args if isinstance(arg, torch.Tensor)))
    layouts, compute = describe_arguments(args), Eager().compile_general(general, args, values)
    for others in list_values(general, values):
        types = general.graph.inputs[: len(args)]
        resized = [(arg, _fill(type_, _find_sizes(general, others))) for arg, type_ in zip(args, types, strict=True)]
        if sum(prod(shape) * arg.element_size() for arg, shape in resized if shape is not None) > most:
            continue
        made = [arg if shape is None else _make_zeros(arg, shape) for arg, shape in resized]
        if describe_arguments(made) == layouts and _is_region(general, compute, made, others):
            yield made, others


def list_values(general: GeneralRegion, values: Sequence[Value]) -> Iterator[tuple[Value, ...]]:
    """Yields the values of a region's variables for other sizes than it has with these.

    Where sizes did not grow together in all regions that it was made of, nobody knows which ones go together, and there
    are none.
    """
    sizes = [[value for value in each if isinstance(value, int)] for each in (values, *general.values)]
    if not sizes[0]:
        return
    share, *others = [tuple(size // gcd(*each) for size in each) for each in sizes]
    if any(other != share for other in others):
        return
    parts = [int(factor * gcd(*sizes[0])) for factor in _FACTORS]
    for part in (part for part in parts if part * min(share) >= _LEAST):
        grown = iter([part * each for each in share])
        yield tuple(next(grown) if isinstance(value, int) else value for value in values)


def _find_sizes(general: GeneralRegion, values: Sequence[Value]) -> Mapping[int, int]:
    """Returns the variables that are sizes, by the numbers of their values in the graph."""
    inputs, found = general.graph.inputs, {}
    number = len(inputs) - sum(place is None for place in general.places)
    for value, place in zip(values, general.places, strict=True):
        if place is None:
            index, number = number, number + 1
        else:
            size = _shape_of(inputs[place[0]])[place[1]]
            assert isinstance(size, Ref)
            index = size.index
        if isinstance(value, int):
            found[index] = value
    return found


def _shape_of(type_: ValueType | None) -> Sequence[int | Ref]:
    return type_.shape if isinstance(type_, TensorType) else ()


def _fill(type_: ValueType | None, sizes: Mapping[int, int]) -> Shape | None:
    """Returns the shape of a tensor for these sizes; None if it is the same for all."""
    shape = _shape_of(type_)
    if Ref not in map(type, shape):
        return None
    return tuple(sizes[size.index] if isinstance(size, Ref) else size for size in shape)


def _make_zeros(arg: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Returns zeros whose strides are in the order of the argument's. As indices they are right for any table."""
    order = sorted(range(arg.dim()), key=lambda dimension: (-arg.stride(dimension), dimension))
    zeros = torch.zeros([shape[dimension] for dimension in order], dtype=arg.dtype, device=arg.device)
    return zeros.permute([order.index(dimension) for dimension in range(arg.dim())])


def _is_region(general: GeneralRegion, compute: GeneralFunction, args: Sequence[Any], values: Sequence[Value]) -> bool:
    """Tells whether torch makes results of the very shapes that the region has with these values."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    graph, sizes = general.graph, _find_sizes(general, values)
    types = [*graph.inputs, *([None] * graph.sizes), *(type_ for op in graph.ops for type_ in op.outputs)]
    with torch.no_grad(), FakeTensorMode() as mode:
        fakes = [mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        try:
            results = compute(fakes, values)(fakes)
        except Exception:  # whatever torch says of sizes that do not fit each other
            return False
    shapes = [_fill(types[output], sizes) or _shape_of(types[output]) for output in graph.outputs]
    return all(tuple(result.shape) == tuple(shape) for result, shape in zip(results, shapes, strict=True))
