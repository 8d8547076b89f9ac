"""Checks that what would be stored computes what nvFuser computes, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fusioncache.backends.api import Run
from fusioncache.backends.nvfuser.capture import Capture
from fusioncache.backends.nvfuser.cuda_graph import shorten
from fusioncache.backends.nvfuser.driver import Driver
from fusioncache.backends.nvfuser.recipe import RECIPE
from fusioncache.backends.nvfuser.recipe_json import decode
from fusioncache.backends.nvfuser.stored_run import StoredRun, check_arguments
from fusioncache.ir.errors import Declined, Scope

_APART = 512
"""Copies are as far off a multiple of so many bytes as their original. Torch's own blocks start at a multiple."""


def verify(
    artifacts: Mapping[str, bytes], capture: Capture, run: Run, args: Sequence[Any], driver: Driver
) -> StoredRun:
    """Launches from the bytes that are to be stored, and compares all outputs and all inputs with those of ``run``.

    The arguments lie on the current device. They are others than those that nvFuser compiled for, aligned as these, and
    may be written into.

    Returns:
        What was launched, which fills new memory first.

    Raises:
        Declined: if there is any difference.
    """
    recipe = decode(artifacts[RECIPE])
    if recipe.inputs != capture.recipe.inputs or recipe.outputs != capture.recipe.outputs:
        raise Declined("a recipe that reads otherwise than it was written", Scope.STORING)
    check_arguments(recipe, args)
    device = torch.cuda.current_device()
    stored = StoredRun(recipe, artifacts, refuse_arguments, driver, device, poison=True)
    steps = stored.load(device)
    for ours, theirs in zip(steps.functions, capture.functions, strict=True):
        if driver.describe_code(ours) != driver.describe_code(theirs):
            raise Declined(f"a cubin that is not that of {shorten(driver.function_name(theirs))}", Scope.STORING)
    compare(stored, run, args)
    return stored


def compare(stored: StoredRun, run: Run, args: Sequence[Any]) -> None:
    """Compares all outputs and all inputs of a launch, which fills new memory first, with those of ``run``.

    Raises:
        Declined: if there is any difference.
    """
    again = [copy_tensor(arg) for arg in args]
    expected = run(args)
    outputs = stored.run(again)
    if len(outputs) != len(expected) or not all(map(have_equal_bits, outputs, expected)):
        raise Declined("other outputs than nvFuser's", Scope.STORING)
    if not all(map(have_equal_bits, again, args)):
        raise Declined("other writes into inputs than nvFuser's", Scope.STORING)
    torch.cuda.current_stream().synchronize()


def refuse_arguments(args: Sequence[Any]) -> Sequence[Any]:
    """Says of a launch that is tried that it is for other arguments.

    Raises:
        Declined: always.
    """
    raise Declined("inputs that are not aligned as those that were captured", Scope.STORING)


def copy_tensor(tensor: Any) -> Any:
    """Returns a tensor with the same values, strides and distance from alignment, in memory of its own."""
    return _place_like(tensor, _flatten(tensor))


def roll_tensor(tensor: Any) -> Any:
    """Returns a copy as ``copy_tensor`` does, with each value in its memory moved on to the next element."""
    return _place_like(tensor, torch.roll(_flatten(tensor), 1))


def _flatten(tensor: Any) -> Any:
    """Returns all of the memory from the first element to the last, whatever lies between them."""
    tensor = tensor.detach()
    if not tensor.numel():
        return tensor.reshape(-1)
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((1 + steps,), (1,), tensor.storage_offset())


def _place_like(tensor: Any, flat: Any) -> Any:
    if not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    item = tensor.element_size()
    memory = torch.empty(flat.numel() + _APART // item, dtype=tensor.dtype, device=tensor.device)
    missing = (tensor.data_ptr() - memory.data_ptr()) % _APART
    if missing % item:
        raise ValueError("a tensor whose elements are not aligned")
    copy = memory[missing // item :][: flat.numel()]
    copy.copy_(flat)
    return copy.as_strided(tensor.shape, tensor.stride(), copy.storage_offset())


def have_equal_bits(one: Any, other: Any) -> bool:
    """Returns whether two tensors have the same shape, strides, dtype and bits."""
    if (one.shape, one.stride(), one.dtype) != (other.shape, other.stride(), other.dtype):
        return False
    return torch.equal(_as_bytes(one), _as_bytes(other))


def _as_bytes(tensor: Any) -> Any:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
