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
from contextlib import contextmanager
from math import gcd, prod
from typing import Any

import torch

from fusioncache.backends.api import GeneralFunction, Run
from fusioncache.backends.eager import Eager
from fusioncache.backends.nvfuser.definition import describe_arguments
from fusioncache.backends.nvfuser.general_shapes import Shape, fill_shape, find_result_shapes, find_sizes
from fusioncache.ir import GeneralRegion, Ref, TensorType, Value, ValueType

logger = logging.getLogger("fusioncache")

MOST_BYTES = 16 << 20
"""How many bytes the arguments for larger sizes may have. Those for smaller ones take no more than is there."""
_FACTORS = (0.5, 2.0, 0.25, 0.125, 0.0625)
_LEAST = 2
"""Sizes of 1 and 0 are never general."""


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
        sizes = find_sizes(general, others)
        resized = [(arg, _resize(type_, sizes)) for arg, type_ in zip(args, types, strict=True)]
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


def _make_zeros(arg: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Returns zeros whose strides are in the order of the argument's. As indices they are right for any table."""
    order = sorted(range(arg.dim()), key=lambda dimension: (-arg.stride(dimension), dimension))
    zeros = torch.zeros([shape[dimension] for dimension in order], dtype=arg.dtype, device=arg.device)
    return zeros.permute([order.index(dimension) for dimension in range(arg.dim())])


def _resize(type_: ValueType, sizes: Mapping[int, int]) -> Shape | None:
    """Returns the shape of a tensor for these sizes; None if it is the same for all."""
    varies = isinstance(type_, TensorType) and any(isinstance(size, Ref) for size in type_.shape)
    return fill_shape(type_, sizes) if varies else None


def _is_region(general: GeneralRegion, compute: GeneralFunction, args: Sequence[Any], values: Sequence[Value]) -> bool:
    """Tells whether torch makes results of the very shapes that the region has with these values."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with torch.no_grad(), FakeTensorMode() as mode, _without_log("torch._subclasses.fake_tensor"):
        fakes = [mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        try:
            results = compute(fakes, values)(fakes)
        except Exception:  # whatever torch says of sizes that do not fit each other
            return False
    shapes = find_result_shapes(general, values)
    return all(tuple(result.shape) == shape for result, shape in zip(results, shapes, strict=True))


@contextmanager
def _without_log(name: str) -> Iterator[None]:
    """Lets torch log nothing: it calls sizes that do not fit each other an error, and to ask is the purpose here."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
