"""A recipe as a function: allocates, tells kernels where everything lies, and launches them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fusioncache.backends.api import Run
from fusioncache.backends.nvfuser.cubin import check_cubin
from fusioncache.backends.nvfuser.driver import DriverError
from fusioncache.backends.nvfuser.fitting import aligned
from fusioncache.backends.nvfuser.loaded import Loaded, NothingLaunched
from fusioncache.backends.nvfuser.outputs import Allocate, allocations, give
from fusioncache.backends.nvfuser.recipe import Recipe
from fusioncache.process import forks

logger = logging.getLogger("fusioncache")

_data_ptr, _get_device = torch.Tensor.data_ptr, torch.Tensor.get_device
# Torch without CUDA has neither.
_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


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
        self._loading = forks.lock()
        self.run = self._function(otherwise, allocations(recipe, poison), give(recipe, poison))

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
        fits, devices, loaded, lock = aligned(self._recipe), self._devices, self.loaded, forks.lock()
        torch_devices = [torch.device("cuda", number) for number in range(max(torch.cuda.device_count(), 1))]
        current_device, current_stream = _current_device, _current_stream
        broken: set[int] = set()

        def run(args: Sequence[Any]) -> Sequence[Any]:
            addresses = list(map(_data_ptr, args))
            device = _get_device(args[0])
            # A kernel may load 16 bytes at once, and one that does so from elsewhere ends the process.
            if not fits(addresses) or device in broken:
                return otherwise(args)
            if current_device() != device:
                with torch.cuda.device(device):
                    return launched(args, addresses, device)
            return launched(args, addresses, device)

        def launched(args: Sequence[Any], addresses: list[int], device: int) -> Sequence[Any]:
            try:
                steps = devices.get(device) or loaded(device)
            except (ValueError, DriverError) as error:
                return compiled(args, device, error)
            fresh = [allocate(torch_devices[device]) for allocate in allocations]
            addresses += map(_data_ptr, fresh)
            try:
                with lock:
                    steps.launch(addresses, current_stream(device))
            except NothingLaunched as error:
                return compiled(args, device, error)
            return give(args, fresh)

        def compiled(args: Sequence[Any], device: int, error: Exception) -> Sequence[Any]:
            broken.add(device)
            logger.warning("a stored kernel does not launch, so its region is compiled: %s", error)
            return otherwise(args)

        return run
