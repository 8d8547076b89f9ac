"""Whether what would be stored computes what nvFuser computes, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fusioncache.backends.api import NotPersistable, Run
from fusioncache.backends.nvfuser.capture import Captured
from fusioncache.backends.nvfuser.codec import decoded
from fusioncache.backends.nvfuser.driver import Driver
from fusioncache.backends.nvfuser.fitting import fits
from fusioncache.backends.nvfuser.launch import Launcher
from fusioncache.backends.nvfuser.nodes import short
from fusioncache.backends.nvfuser.tensors import copied, equal_bits


def verify(artifacts: Mapping[str, bytes], captured: Captured, run: Run, args: Sequence[Any], driver: Driver) -> None:
    """Launches from the bytes that are to be stored and compares all outputs and all inputs with nvFuser's.

    Args:
        artifacts: what is to be stored.
        captured: what it was made of.
        run: nvFuser's function.
        args: others than those that were compiled for, aligned as these. What is written in place is written.
        driver: of CUDA.

    Raises:
        NotPersistable: if there is any difference.
    """
    recipe = decoded(artifacts["recipe"])
    if recipe.inputs != captured.recipe.inputs or recipe.outputs != captured.recipe.outputs:
        raise NotPersistable("a recipe that reads otherwise than it was written")
    fits(recipe, args)
    launcher = Launcher(recipe, artifacts, _never, driver, poison=True)
    loaded = launcher.loaded(args[0].get_device())
    for ours, theirs in zip(loaded.functions, captured.functions, strict=True):
        if driver.code(ours) != driver.code(theirs):
            raise NotPersistable(f"a cubin that is not that of {short(driver.name(theirs))}")
    again = [copied(arg) for arg in args]
    expected = run(args)
    outputs = launcher.run(again)
    if len(outputs) != len(expected) or not all(map(equal_bits, outputs, expected)):
        raise NotPersistable("other outputs than nvFuser's")
    if not all(map(equal_bits, again, args)):
        raise NotPersistable("other writes into inputs than nvFuser's")
    torch.cuda.current_stream().synchronize()


def _never(args: Sequence[Any]) -> Sequence[Any]:
    raise NotPersistable("inputs that are not aligned as those that were captured")
