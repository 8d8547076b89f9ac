"""A recipe as a function: it allocates, tells kernels where everything lies, launches them, and returns the outputs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import or_
from typing import Any

import torch
from torch._C._dynamo import guards

from fusioncache.backends.api import Run
from fusioncache.backends.nvfuser.driver import Driver, DriverError
from fusioncache.backends.nvfuser.launch import LoadedSteps, NothingLaunched, check_cubin
from fusioncache.backends.nvfuser.recipe import Duplicate, Fresh, Layout, Output, Recipe, View
from fusioncache.backends.nvfuser.written_run import can_write, write_run
from fusioncache.process import forks

logger = logging.getLogger("fusioncache")

_POISON = 255

MOST_THREADS = 64
"""How many threads have steps of their own at a time."""

_data_ptr, _get_device = torch.Tensor.data_ptr, torch.Tensor.get_device
# Torch without CUDA has neither.
_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)

Allocate = Callable[[], Any]
"""Makes a tensor on the current GPU."""

Collect = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
"""Takes the arguments and the allocations, and returns the outputs."""


class StoredRun:
    """Launches a recipe on the GPU of its arguments, on the current stream, in as many threads as there are.

    Args:
        recipe: what to launch.
        cubins: the cubins by name.
        otherwise: computes the same for arguments that the recipe is not for: aligned in another way.
        driver: the driver of CUDA.
        home: the number of the GPU that a recipe without inputs is for.
        poison: whether new memory is filled with ones first, so that what reads it before it is written shows.
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
    ):
        missing = set(recipe.cubins) - set(cubins)
        if missing:
            raise ValueError(f"a recipe without its cubin {min(missing)}")
        for name in recipe.cubins:
            check_cubin(cubins[name])
        self._recipe = recipe
        self._cubins = cubins
        self._driver = driver
        self._home = home
        self._threads: dict[tuple[int, int], LoadedSteps] = {}
        self._loading = forks.lock()
        self.run = self._make_run(otherwise, make_allocators(recipe, poison), make_collector(recipe, poison))

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
                others = [each.functions for (number, _), each in self._threads.items() if number == device]
                if len(others) >= MOST_THREADS:  # most of these threads are no more
                    self._threads.clear()
                steps = LoadedSteps(self._recipe, self._cubins, self._driver, device, others[0] if others else None)
                self._threads[own] = steps
            return steps

    def _make_run(self, otherwise: Run, allocators: Sequence[Allocate], collect: Collect | None) -> Run:
        """Returns what launches the recipe; where that is worth it, as a function that is written for it."""
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
            except NothingLaunched as error:
                return compile_instead(args, device, error)
            return fresh if collect is None else collect(args, fresh)

        def compile_instead(args: Sequence[Any], device: int, error: Exception) -> Sequence[Any]:
            broken.add(device)
            self._forget(device)
            logger.warning("a stored kernel does not launch, so its region is compiled: %s", error)
            return otherwise(args)

        if not can_write(self._recipe):
            return run
        functions = {
            "data_ptr": _data_ptr,
            "get_device": _get_device,
            "current_device": _current_device,
            "current_stream": _current_stream,
        }
        return write_run(self._recipe, run, threads, functions, allocators, collect)

    def _forget(self, device: int) -> None:
        """Takes the steps on a device away, so that no thread launches them any more."""
        with self._loading:
            for own in [each for each in self._threads if each[0] == device]:
                del self._threads[own]


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


def make_allocators(recipe: Recipe, poison: bool) -> list[Allocate]:
    """Returns what makes each allocation: the output that fills it, else bytes, which are all ones with ``poison``."""
    sole = find_sole_outputs(recipe, poison)
    return [
        _allocate_tensor(sole[index]) if index in sole else _allocate_bytes(size, poison)
        for index, size in enumerate(recipe.allocations)
    ]


def find_sole_outputs(recipe: Recipe, poison: bool) -> dict[int, Layout]:
    """Returns the layout of each allocation that is one output and no more. Takes what ``make_allocators`` takes."""
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


def _allocate_tensor(layout: Layout) -> Allocate:
    dtype, shape, strides = getattr(torch, layout.dtype), layout.shape, layout.strides
    quick: Any = getattr(guards, "_empty_strided_cuda", None)  # on the current device
    if quick is None:
        return partial(torch.empty_strided, shape, strides, dtype=dtype, device=torch.device("cuda"))
    return partial(quick, shape, strides, dtype)


def _allocate_bytes(size: int, poison: bool) -> Allocate:
    if poison:
        return partial(torch.full, (size,), _POISON, dtype=torch.uint8, device=torch.device("cuda"))
    return partial(torch.empty, size, dtype=torch.uint8, device=torch.device("cuda"))


def make_collector(recipe: Recipe, poison: bool) -> Collect | None:
    """Returns what makes the outputs of arguments and allocations; None if the latter are the outputs.

    Takes what ``make_allocators`` takes.
    """
    sole, outputs = find_sole_outputs(recipe, poison), recipe.outputs
    indices = [output.allocation for output in outputs if isinstance(output, Fresh) and output.allocation in sole]
    if len(indices) == len(outputs):
        if indices == list(range(len(recipe.allocations))):
            return None
        return lambda args, fresh: [fresh[index] for index in indices]
    makers = [_make_output(output, sole) for output in outputs]

    def collect(args: Sequence[Any], fresh: Sequence[Any]) -> Sequence[Any]:
        collected: list[Any] = []
        for make in makers:
            collected.append(make(args, fresh, collected))
        return collected

    return collect


def _make_output(
    output: Output, sole: Mapping[int, Layout]
) -> Callable[[Sequence[Any], Sequence[Any], list[Any]], Any]:
    """Returns what makes one output of the arguments, the allocations and the outputs before it."""
    if isinstance(output, Duplicate):
        return lambda args, fresh, earlier: earlier[output.output]
    shape, strides = output.layout.shape, output.layout.strides
    if isinstance(output, View):
        index, offset = output.input, output.offset
        if output.itself:
            return lambda args, fresh, earlier: args[index]

        def view(args: Sequence[Any], fresh: Sequence[Any], earlier: list[Any]) -> Any:
            arg = args[index].detach()  # autograd knows of nothing that a region does
            return arg.as_strided(shape, strides, arg.storage_offset() + offset)

        return view
    allocation, dtype = output.allocation, getattr(torch, output.layout.dtype)
    if allocation in sole:
        return lambda args, fresh, earlier: fresh[allocation]
    first = output.offset // dtype.itemsize

    def make(args: Sequence[Any], fresh: Sequence[Any], earlier: list[Any]) -> Any:
        # A tensor of its own rather than a view: what it shares its memory with is known to nobody else.
        memory = fresh[allocation]
        tensor = torch.empty(0, dtype=dtype, device=memory.device)
        return tensor.set_(memory.untyped_storage(), first, shape, strides)

    return make
