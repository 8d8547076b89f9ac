"""What a run allocates, and its outputs out of that and of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C._dynamo import guards

from fusioncache.backends.nvfuser.parts import Again, Fresh, Layout, Output, View
from fusioncache.backends.nvfuser.recipe import Recipe

_POISON = 255

Allocate = Callable[[torch.device], Any]


def allocations(recipe: Recipe, poison: bool) -> list[Allocate]:
    """For each allocation what makes it: the output itself if it fills it, else bytes.

    Args:
        recipe: of the run.
        poison: whether bytes are all ones.
    """
    whole = alone(recipe, poison)
    return [
        _tensor(whole[number]) if number in whole else _bytes(size, poison)
        for number, size in enumerate(recipe.allocations)
    ]


def alone(recipe: Recipe, poison: bool) -> dict[int, Layout]:
    """The allocations that are nothing but one output, with its layout. Takes the same as ``allocations``."""
    if poison:
        return {}
    fresh = [output for output in recipe.outputs if isinstance(output, Fresh)]
    counts = [output.allocation for output in fresh]
    return {
        output.allocation: output.layout
        for output in fresh
        if counts.count(output.allocation) == 1
        and output.offset == 0
        and recipe.allocations[output.allocation] == output.layout.extent
    }


def _tensor(layout: Layout) -> Allocate:
    dtype, shape, strides = getattr(torch, layout.dtype), layout.shape, layout.strides
    quick: Any = getattr(guards, "_empty_strided_cuda", None)  # on the current device
    if quick is None:
        return lambda device: torch.empty_strided(shape, strides, dtype=dtype, device=device)
    return lambda device: quick(shape, strides, dtype)


def _bytes(size: int, poison: bool) -> Allocate:
    if poison:
        return lambda device: torch.full((size,), _POISON, dtype=torch.uint8, device=device)
    return lambda device: torch.empty(size, dtype=torch.uint8, device=device)


def give(recipe: Recipe, poison: bool) -> Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]:
    """What makes the outputs of arguments and allocations. Takes the same as ``allocations``."""
    whole = alone(recipe, poison)
    outputs = recipe.outputs
    places = [output.allocation for output in outputs if isinstance(output, Fresh) and output.allocation in whole]
    if len(places) == len(outputs):
        if places == list(range(len(recipe.allocations))):
            return lambda args, fresh: fresh
        return lambda args, fresh: [fresh[place] for place in places]
    makers = [_maker(output, whole) for output in outputs]

    def made(args: Sequence[Any], fresh: Sequence[Any]) -> Sequence[Any]:
        given: list[Any] = []
        for make in makers:
            given.append(make(args, fresh, given))
        return given

    return made


def _maker(output: Output, alone: Mapping[int, Layout]) -> Callable[[Sequence[Any], Sequence[Any], list[Any]], Any]:
    if isinstance(output, Again):
        return lambda args, fresh, given: given[output.output]
    shape, strides = output.layout.shape, output.layout.strides
    if isinstance(output, View):
        number, off = output.input, output.offset
        if output.itself:
            return lambda args, fresh, given: args[number]

        def view(args: Sequence[Any], fresh: Sequence[Any], given: list[Any]) -> Any:
            arg = args[number].detach()  # autograd knows of nothing that a region does
            return arg.as_strided(shape, strides, arg.storage_offset() + off)

        return view
    place, dtype = output.allocation, getattr(torch, output.layout.dtype)
    if place in alone:
        return lambda args, fresh, given: fresh[place]
    first = output.offset // dtype.itemsize

    def make(args: Sequence[Any], fresh: Sequence[Any], given: list[Any]) -> Any:
        # A tensor of its own rather than a view: what it shares its memory with is known to nobody else.
        memory = fresh[place]
        whole = torch.empty(0, dtype=dtype, device=memory.device)
        return whole.set_(memory.untyped_storage(), first, shape, strides)

    return make
