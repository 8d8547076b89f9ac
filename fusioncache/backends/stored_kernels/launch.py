"""A recipe as a function: allocates, tells kernels where everything lies, and launches them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch._C._dynamo import guards

from fusioncache.backends.made import Run
from fusioncache.backends.stored_kernels.cubin import check_cubin
from fusioncache.backends.stored_kernels.loaded import Loaded, NothingLaunched
from fusioncache.backends.stored_kernels.recipe import Again, Fresh, Layout, Output, Recipe, View

logger = logging.getLogger("fusioncache")

_POISON = 255
_data_ptr, _get_device = torch.Tensor.data_ptr, torch.Tensor.get_device
# Torch without CUDA has neither.
_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)

Allocate = Callable[[torch.device], Any]


class Launcher:
    """Launches a recipe on the device of its arguments, on the current stream, in as many threads as there are.

    Args:
        recipe: what to launch.
        cubins: by name.
        otherwise: computes the same for arguments that the recipe is not for: aligned in another way.
        driver: of CUDA.
        poison: whether new memory is filled with ones first, so that what reads it before it is written shows.
    """

    def __init__(
        self, recipe: Recipe, cubins: Mapping[str, bytes], otherwise: Run, driver: Any, *, poison: bool = False
    ):
        missing = set(recipe.cubins) - set(cubins)
        if missing:
            raise ValueError(f"a recipe without its cubin {min(missing)}")
        for name in recipe.cubins:
            check_cubin(cubins[name])
        self._recipe = recipe
        self._cubins = cubins
        self._driver = driver
        self._devices: dict[int, Loaded] = {}
        self._loading = threading.Lock()
        self.run = self._function(otherwise, _allocations(recipe, poison), _give(recipe, poison))

    def loaded(self, device: int) -> Loaded:
        """The steps on a device, which must be the current one.

        Raises:
            ValueError: if they do not fit the cubins.
            DriverError: if a cubin does not load.
        """
        with self._loading:
            found = self._devices.get(device)
            if found is None:
                found = self._devices[device] = Loaded(self._recipe, self._cubins, self._driver, device)
            return found

    def _function(self, otherwise: Run, allocations: Sequence[Allocate], give: Callable[..., Sequence[Any]]) -> Run:
        """A closure, because every attribute that is looked up here is paid for in every call of every region."""
        aligned, devices, loaded, lock = _alignment(self._recipe), self._devices, self.loaded, threading.Lock()
        torch_devices = [torch.device("cuda", number) for number in range(max(torch.cuda.device_count(), 1))]
        current_device, current_stream = _current_device, _current_stream
        broken = False

        def run(args: Sequence[Any]) -> Sequence[Any]:
            addresses = list(map(_data_ptr, args))
            if broken or not aligned(addresses):
                return otherwise(args)
            device = _get_device(args[0])
            if current_device() != device:
                with torch.cuda.device(device):
                    return launched(args, addresses, device)
            return launched(args, addresses, device)

        def launched(args: Sequence[Any], addresses: list[int], device: int) -> Sequence[Any]:
            steps = devices.get(device) or loaded(device)
            fresh = [allocate(torch_devices[device]) for allocate in allocations]
            addresses += map(_data_ptr, fresh)
            try:
                with lock:
                    steps.launch(addresses, current_stream(device))
            except NothingLaunched as error:
                nonlocal broken
                broken = True
                logger.warning("a stored kernel does not launch, so its region is compiled: %s", error)
                return otherwise(args)
            return give(args, fresh)

        return run


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


def _alignment(recipe: Recipe) -> Callable[[Sequence[int]], bool]:
    """Whether addresses are aligned as those that the recipe was made for: neither less nor more.

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


def _allocations(recipe: Recipe, poison: bool) -> list[Allocate]:
    """For each allocation what makes it: the output itself if it fills it, else bytes."""
    alone = _alone(recipe, poison)
    return [
        _tensor(alone[number]) if number in alone else _bytes(size, poison)
        for number, size in enumerate(recipe.allocations)
    ]


def _alone(recipe: Recipe, poison: bool) -> dict[int, Layout]:
    """The allocations that are nothing but one output."""
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


def _give(recipe: Recipe, poison: bool) -> Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]:
    """The outputs, from arguments and allocations."""
    alone = _alone(recipe, poison)
    outputs = recipe.outputs
    places = [output.allocation for output in outputs if isinstance(output, Fresh) and output.allocation in alone]
    if len(places) == len(outputs):
        if places == list(range(len(recipe.allocations))):
            return lambda args, fresh: fresh
        return lambda args, fresh: [fresh[place] for place in places]
    makers = [_maker(output, alone) for output in outputs]

    def give(args: Sequence[Any], fresh: Sequence[Any]) -> Sequence[Any]:
        given: list[Any] = []
        for make in makers:
            given.append(make(args, fresh, given))
        return given

    return give


def _maker(output: Output, alone: Mapping[int, Layout]) -> Callable[[Sequence[Any], Sequence[Any], list[Any]], Any]:
    if isinstance(output, Again):
        return lambda args, fresh, given: given[output.output]
    shape, strides = output.layout.shape, output.layout.strides
    if isinstance(output, View):
        number, off = output.input, output.offset
        if output.itself:
            return lambda args, fresh, given: args[number]
        return lambda args, fresh, given: args[number].as_strided(shape, strides, args[number].storage_offset() + off)
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
