"""The memory that a run allocates, and its outputs: allocations, tensors in them, and views of arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._C._dynamo import guards

from fusioncache.backends.nvfuser.recipe import Duplicate, Fresh, Layout, Output, Recipe, View

_POISON = 255

# These two are as quick as can be. The first is for the current device; what the second makes is no view to autograd.
empty_strided: Any = getattr(guards, "_empty_strided_cuda", None)
reinterpret: Any = getattr(guards, "_reinterpret_tensor", None)

Allocate = Callable[[], Any]
"""Makes a tensor on the current GPU."""

Collect = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
"""Takes the arguments and the allocations, and returns the outputs."""

Make = Callable[[Sequence[Any], Sequence[Any]], Any]
"""Makes one output of the arguments and the allocations."""


Written = int | Duplicate | Make
"""An output: the allocation of this number, the same as an earlier output, or one that has to be made."""


def make_allocators(recipe: Recipe, poison: bool) -> list[Allocate]:
    """Returns what makes each allocation: the output that fills it, else bytes, which are all ones with ``poison``."""
    whole = find_whole_outputs(recipe, poison)
    return [
        _allocate_tensor(_layout_of(recipe, whole[index])) if index in whole else _allocate_bytes(size, poison)
        for index, size in enumerate(recipe.allocations)
    ]


def find_whole_outputs(recipe: Recipe, poison: bool) -> dict[int, int]:
    """Returns for each allocation that an output fills the index of the first. Takes what ``make_allocators`` takes."""
    found: dict[int, int] = {}
    for index, output in enumerate(() if poison else recipe.outputs):
        if isinstance(output, Fresh) and (output.offset, output.layout.extent) == (
            0,
            recipe.allocations[output.allocation],
        ):
            found.setdefault(output.allocation, index)
    return found


def _layout_of(recipe: Recipe, index: int) -> Layout:
    output = recipe.outputs[index]
    assert isinstance(output, Fresh)
    return output.layout


def _allocate_tensor(layout: Layout) -> Allocate:
    dtype, shape, strides = getattr(torch, layout.dtype), layout.shape, layout.strides
    if empty_strided is None:
        return partial(torch.empty_strided, shape, strides, dtype=dtype, device=torch.device("cuda"))
    return partial(empty_strided, shape, strides, dtype)


def _allocate_bytes(size: int, poison: bool) -> Allocate:
    if poison:
        return partial(torch.full, (size,), _POISON, dtype=torch.uint8, device=torch.device("cuda"))
    return _allocate_tensor(Layout("uint8", (size,), (1,)))


def allocate_bytes(size: int) -> Any:
    """Returns a tensor of so many bytes on the current GPU, whatever is in them."""
    return _allocate_bytes(size, poison=False)()


def write_outputs(recipe: Recipe, poison: bool) -> list[Written]:
    """Returns what each output is. Takes what ``make_allocators`` takes."""
    whole = find_whole_outputs(recipe, poison)
    return [_write_output(index, output, recipe, whole) for index, output in enumerate(recipe.outputs)]


def make_collector(outputs: Sequence[Written]) -> Collect:
    """Returns what makes such outputs."""

    def collect(args: Sequence[Any], fresh: Sequence[Any]) -> Sequence[Any]:
        collected: list[Any] = []
        for each in outputs:
            match each:
                case int():
                    collected.append(fresh[each])
                case Duplicate():
                    collected.append(collected[each.output])
                case _:
                    collected.append(each(args, fresh))
        return collected

    return collect


def _write_output(index: int, output: Output, recipe: Recipe, whole: Mapping[int, int]) -> Written:
    match output:
        case Duplicate():
            return output
        case View():
            return _make_view(output)
    allocation = output.allocation
    if whole.get(allocation) == index:
        return allocation
    if allocation in whole and reinterpret is not None:
        return _make_alias(output, _layout_of(recipe, whole[allocation]))
    return _make_part(output)


def _make_view(output: View) -> Make:
    """Returns what makes an output in the memory of an argument."""
    shape, strides = output.layout.shape, output.layout.strides
    index, offset = output.input, output.offset
    if output.itself:
        return lambda args, fresh: args[index]

    def view(args: Sequence[Any], fresh: Sequence[Any]) -> Any:
        arg = args[index].detach()  # autograd knows of nothing that a region does
        return arg.as_strided(shape, strides, arg.storage_offset() + offset)

    return view


def _make_alias(output: Fresh, of: Layout) -> Make:
    """Returns what makes an output in the memory of another one that fills it."""
    if output.layout.dtype != of.dtype:
        return _make_part(output)
    shape, strides, allocation = output.layout.shape, output.layout.strides, output.allocation
    first = output.offset // getattr(torch, of.dtype).itemsize
    return lambda args, fresh: reinterpret(fresh[allocation], shape, strides, first)


def _make_part(output: Fresh) -> Make:
    """Returns what makes an output of a part of an allocation."""
    dtype, shape, strides = getattr(torch, output.layout.dtype), output.layout.shape, output.layout.strides
    allocation, first = output.allocation, output.offset // getattr(torch, output.layout.dtype).itemsize

    def make(args: Sequence[Any], fresh: Sequence[Any]) -> Any:
        # A tensor of its own rather than a view: what it shares its memory with is known to nobody else.
        memory = fresh[allocation]
        tensor = torch.empty(0, dtype=dtype, device=memory.device)
        return tensor.set_(memory.untyped_storage(), first, shape, strides)

    return make
