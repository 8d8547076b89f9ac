"""Which arguments a recipe is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any

import torch

from fusioncache.backends.nvfuser.recipe import Recipe


def fits(recipe: Recipe, args: Sequence[Any]) -> None:
    """Whether a recipe is for such arguments.

    Raises:
        ValueError: if it is not.
    """
    if len(args) != len(recipe.inputs):
        raise ValueError(f"a recipe for {len(recipe.inputs)} arguments, not {len(args)}")
    for arg, input_ in zip(args, recipe.inputs, strict=True):
        if not isinstance(arg, torch.Tensor) or not arg.is_cuda or arg.get_device() != args[0].get_device():
            raise ValueError("an argument that is no tensor on the others' device")
        found = str(arg.dtype).removeprefix("torch."), tuple(arg.shape), tuple(arg.stride())
        if found != (input_.layout.dtype, input_.layout.shape, input_.layout.strides):
            raise ValueError("a recipe for arguments of another layout")


def aligned(recipe: Recipe) -> Callable[[Sequence[int]], bool]:
    """What tells whether addresses are aligned as those that the recipe was made for: neither less nor more.

    More would do no harm, but the compiler would take other kernels for them, which might add up in another order.
    """
    widest = recipe.widest
    if all(input_.alignment == widest for input_ in recipe.inputs):
        return lambda addresses: not reduce(or_, addresses) % widest
    asked = [
        (widest, 0) if input_.alignment == widest else (2 * input_.alignment, input_.alignment)
        for input_ in recipe.inputs
    ]
    return lambda addresses: all(
        address % modulus == rest for address, (modulus, rest) in zip(addresses, asked, strict=True)
    )
