"""A recipe as a function: it allocates, tells kernels where everything lies, launches them, and returns the outputs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import Any

import torch

from fusioncache.backends.api import Run
from fusioncache.backends.nvfuser.driver import Driver, DriverError
from fusioncache.backends.nvfuser.launch import LoadedSteps, check_cubin
from fusioncache.backends.nvfuser.outputs import Allocate, Collect, make_allocators, make_collector, write_outputs
from fusioncache.backends.nvfuser.recipe import Recipe
from fusioncache.backends.nvfuser.written_run import can_write, write_run
from fusioncache.backends.nvfuser.zeroed_memory import Piece, find_zeroed
from fusioncache.process import forks

logger = logging.getLogger("fusioncache")

MOST_THREADS = 64
"""How many threads have steps of their own at a time."""

_data_ptr, _get_device = torch.Tensor.data_ptr, torch.Tensor.get_device
# Torch without CUDA has neither.
_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class StoredRun:
    """Launches a recipe on the GPU of its arguments, on the current stream, in as many threads as there are.

    Args:
        recipe: what to launch.
        cubins: the cubins by name.
        otherwise: computes the same for arguments that the recipe is not for: aligned in another way.
        driver: the driver of CUDA.
        home: the number of the GPU that a recipe without inputs is for.
        poison: whether new memory is filled with ones first, so that what reads it before it is written shows.
        functions: that of each launch, for each GPU that has them already. Without cubins it runs on no other.

    Attributes:
        run: takes the arguments and returns the outputs.
    """

    def __init__(
        self,
        recipe: Recipe,
        cubins: Mapping[str, bytes],
        otherwise: Run,
        driver: Driver,
        home: int,
        *,
        poison: bool = False,
        functions: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
    ):
        if not functions:
            _check_cubins(recipe, cubins)
        self._recipe = recipe
        self._cubins = cubins
        self._driver = driver
        self._home = home
        self._threads: dict[tuple[int, int], LoadedSteps] = {}
        self._functions = dict(functions)
        self._loading = forks.lock()
        self.run = self._make_run(otherwise, poison)

    def load(self, device: int) -> LoadedSteps:
        """Returns the steps on a device, which must be the current one, for this thread, which waits for no other then.

        Raises:
            ValueError: if they do not fit the cubins.
            DriverError: if a cubin does not load.
        """
        with self._loading:
            own = device, threading.get_ident()
            steps = self._threads.get(own)
            if steps is None:
                if len(self._threads) >= MOST_THREADS:  # most of these threads are no more
                    self._threads.clear()
                known = self._functions.get(device)
                steps = LoadedSteps(self._recipe, self._cubins, self._driver, device, known)
                self._threads[own], self._functions[device] = steps, steps.functions
            return steps

    def launching(self, otherwise: Run) -> StoredRun:
        """Returns another run of the same that fills no memory, and computes what it is not for in another way.

        Cubins that are loaded for this one are not loaded again.
        """
        return StoredRun(self._recipe, self._cubins, otherwise, self._driver, self._home, functions=self._functions)

    def _make_run(self, otherwise: Run, poison: bool) -> Run:
        """Returns what launches the recipe; where that is worth it, as a function that is written for it."""
        allocators, outputs = make_allocators(self._recipe, poison), write_outputs(self._recipe, poison)
        run = self._make_general_run(otherwise, allocators, make_collector(outputs))
        if not can_write(self._recipe):
            return run
        functions = {
            "data_ptr": _data_ptr,
            "get_device": _get_device,
            "current_device": _current_device,
            "current_stream": _current_stream,
        }
        # What fills new memory shows who reads it before it is written, so that nothing else may be in its place.
        zeroed = Piece({}, 0) if poison else find_zeroed(self._recipe)
        return write_run(self._recipe, run, self._threads, functions, allocators, outputs, zeroed)

    def _make_general_run(self, otherwise: Run, allocators: Sequence[Allocate], collect: Collect) -> Run:
        are_aligned, threads, load = make_alignment_check(self._recipe), self._threads, self.load
        home = self._home
        broken: set[int] = set()

        def run(args: Sequence[Any]) -> Sequence[Any]:
            addresses = list(map(_data_ptr, args))
            device = _get_device(args[0]) if args else home
            # A kernel may load 16 bytes at once, and one that does so from elsewhere ends the process.
            if device in broken or not are_aligned(addresses):
                return otherwise(args)
            if _current_device() != device:
                with torch.cuda.device(device):
                    return launch(args, addresses, device)
            return launch(args, addresses, device)

        def launch(args: Sequence[Any], addresses: list[int], device: int) -> Sequence[Any]:
            try:
                steps = threads.get((device, threading.get_ident())) or load(device)
            except (ValueError, DriverError) as error:
                return compile_instead(args, device, error)
            fresh = [allocate() for allocate in allocators]
            addresses += map(_data_ptr, fresh)
            try:
                steps.launch(addresses, _current_stream(device))
            except DriverError as error:
                if error.launched:
                    raise
                return compile_instead(args, device, error)
            return collect(args, fresh)

        def compile_instead(args: Sequence[Any], device: int, error: Exception) -> Sequence[Any]:
            broken.add(device)
            self._forget(device)
            logger.warning("a stored kernel does not launch, so its region is compiled: %s", error)
            return otherwise(args)

        return run

    def _forget(self, device: int) -> None:
        """Takes the steps on a device away, so that no thread launches them any more."""
        with self._loading:
            for own in [each for each in self._threads if each[0] == device]:
                del self._threads[own]


def _check_cubins(recipe: Recipe, cubins: Mapping[str, bytes]) -> None:
    """Raises ``ValueError`` if a cubin is missing or damaged."""
    missing = set(recipe.cubins) - set(cubins)
    if missing:
        raise ValueError(f"a recipe without its cubin {min(missing)}")
    for name in recipe.cubins:
        check_cubin(cubins[name])


def check_arguments(recipe: Recipe, args: Sequence[Any]) -> None:
    """Checks that a recipe is for such arguments.

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


def make_alignment_check(recipe: Recipe) -> Callable[[Sequence[int]], bool]:
    """Returns what tells whether addresses are aligned as those that the recipe is for: neither less nor more.

    More would do no harm, but the compiler would take other kernels for them, which might add up in another order.
    """
    widest = recipe.widest
    if all(input_.alignment == widest for input_ in recipe.inputs):
        return lambda addresses: not reduce(or_, addresses, 0) % widest
    expected = [
        (widest, 0) if input_.alignment == widest else (2 * input_.alignment, input_.alignment)
        for input_ in recipe.inputs
    ]
    return lambda addresses: all(
        address % modulus == rest for address, (modulus, rest) in zip(addresses, expected, strict=True)
    )
