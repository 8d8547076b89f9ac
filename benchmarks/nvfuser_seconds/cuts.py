"""Whether a definition is cut into the same kernels without the view that comes last. It needs a GPU and nvFuser.

    python -m benchmarks.nvfuser_seconds.cuts

With the view nvFuser takes a definition apart into single operations and merges them along their edges; without it, it
takes the definition whole. Operations that only share an input have no edge: they become one kernel in one case,
several in the other, and a reduction adds in another order beside other operations. So no view is left out for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

Outputs = tuple[list[Any], Any]
"""Results, and the one that is viewed in another shape."""

_SIZES = ((128, 512), (2048, 4096), (8192, 1376))


def sum_beside(fd: Any, x: Any, y: Any) -> Outputs:
    """Sums rows of one input, and computes something else of it."""
    return [fd.ops.sum(x, dims=[1])], fd.ops.tanh(x)


def sum_behind(fd: Any, x: Any, y: Any) -> Outputs:
    """Sums the squares of what is viewed."""
    total = fd.ops.add(x, y)
    return [fd.ops.sum(fd.ops.mul(total, total), dims=[1])], total


def sum_columns_beside(fd: Any, x: Any, y: Any) -> Outputs:
    """Sums columns of one input, and computes something else of it."""
    return [fd.ops.sum(x, dims=[0])], fd.ops.exp(x)


def two_beside(fd: Any, x: Any, y: Any) -> Outputs:
    """Reduces each of two inputs, and multiplies them."""
    return [fd.ops.sum(x, dims=[1]), fd.ops.max(y, dims=[1])], fd.ops.mul(x, y)


def check(make: Callable[..., Outputs], args: list[torch.Tensor]) -> tuple[list[int], list[bool]]:
    """Returns how many kernels there are with the view and without, and whether each result has the same bits."""
    with_view, without = (_run(make, args, view) for view in (True, False))
    same = [torch.equal(one.flatten(), other.flatten()) for one, other in zip(with_view[0], without[0], strict=True)]
    return [with_view[1], without[1]], same


def _run(make: Callable[..., Outputs], args: list[torch.Tensor], view: bool) -> tuple[list[torch.Tensor], int]:
    from nvfuser_direct import DataType, FusionDefinition

    with FusionDefinition() as fd:
        inputs = (fd.ops.cast(fd.from_pytorch(arg), dtype=DataType.Float) for arg in args)
        results, viewed = make(fd, *inputs)
        for result in results:
            fd.add_output(result)
        viewed = fd.ops.cast(viewed, dtype=DataType.BFloat16)
        fd.add_output(fd.ops.reshape(viewed, new_shape=[args[0].numel()]) if view else viewed)
    return fd.execute(args), fd.fec.get_cuda_kernel(args).count("__global__ void nvfuser")


def check_all() -> Iterator[str]:
    """Yields a line for each definition and size."""
    torch.manual_seed(0)
    for rows, columns in _SIZES:
        args = [torch.rand(rows, columns, device="cuda").bfloat16() for _ in range(2)]
        for make in (sum_beside, sum_behind, sum_columns_beside, two_beside):
            kernels, same = check(make, args)
            counts = f"{kernels[0]} kernels, {kernels[1]} without the view"
            yield f"{make.__name__}, {rows} x {columns}: {counts}, same bits {same}"


if __name__ == "__main__":
    for line in check_all():
        print(line, flush=True)
