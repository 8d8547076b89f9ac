"""A recipe's steps on one device: cubins loaded, parameters laid out, ready to be given addresses and launched."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import byref, c_void_p
from typing import Any

from fusioncache.backends.nvfuser.driver import NO_CONTEXT, DriverError
from fusioncache.backends.nvfuser.parts import WORD, Fill, Launch
from fusioncache.backends.nvfuser.recipe import Recipe
from fusioncache.backends.nvfuser.structures import COOPERATIVE, Attribute, LaunchConfig

_ALIGNED = 64
"""Bytes that parameters are apart: no type of a parameter asks for more."""


class NothingLaunched(Exception):
    """The first step failed, so that nothing has happened yet."""


class Loaded:
    """The steps of a recipe. One thread at a time may use them.

    The device must be the current one.

    Args:
        recipe: what to launch.
        cubins: by name.
        driver: of CUDA.
        device: its number.

    Raises:
        ValueError: if a cubin and the recipe do not fit.
        DriverError: if a cubin does not load.
    """

    __slots__ = ("_commands", "_configs", "_device", "_driver", "_pointers", "_stream", "_words", "functions")

    def __init__(self, recipe: Recipe, cubins: Mapping[str, bytes], driver: Any, device: int):
        self._driver = driver
        self._device = device
        driver.bind(device)
        modules = {name: driver.load(cubins[name]) for name in recipe.cubins}
        launches = [step for step in recipe.steps if isinstance(step, Launch)]
        self.functions = tuple(_function(driver, modules[step.cubin], step) for step in launches)
        self._words, self._pointers, arrays = _laid_out(launches)
        self._configs = [_config(step) for step in launches]
        self._stream: int | None = None
        self._commands = _commands(recipe, driver, self.functions, self._configs, arrays)

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        """Launches everything on a stream.

        Args:
            addresses: of the inputs and the allocations.
            stream: its handle.

        Raises:
            NothingLaunched: if the first step fails.
            DriverError: if another one does.
        """
        words = self._words
        for place, buffer, delta in self._pointers:
            words[place] = addresses[buffer] + delta
        if stream != self._stream:
            self._stream = stream
            for config in self._configs:
                config.stream = stream
        for number, (call, args, fill) in enumerate(self._commands):
            if fill is not None:
                args = (addresses[fill.buffer] + fill.delta, fill.value, fill.size, stream)
            code = call(*args)
            if code:
                self._again(number, call, args, code)

    def _again(self, number: int, call: Any, args: Any, code: int) -> None:
        """A thread that has only used torch's cached memory so far has no context yet."""
        if code == NO_CONTEXT:
            self._driver.bind(self._device)
            code = call(*args)
        try:
            self._driver.check("launch", code)
        except DriverError as error:
            if number == 0:
                raise NothingLaunched(str(error)) from error
            raise


def _function(driver: Any, module: int, step: Launch) -> int:
    function = driver.function(module, step.function)
    if [size for _, size in driver.parameters(function)] != list(map(len, step.parameters)):
        raise ValueError(f"a cubin whose {step.function} takes other parameters")
    driver.allow_shared(function, step.most_shared)
    return int(function)


def _laid_out(launches: Sequence[Launch]) -> tuple[Any, list[tuple[int, int, int]], list[Any]]:
    """All parameters in one piece of memory, seen as words; which word is which address; and the parameters' places."""
    content = bytearray()
    pointers: list[tuple[int, int, int]] = []
    starts: list[list[int]] = []
    for step in launches:
        starts.append([])
        for parameter in step.parameters:
            content += bytes(-len(content) % _ALIGNED)
            starts[-1].append(len(content))
            content += parameter
        for pointer in step.pointers:
            place = starts[-1][pointer.parameter] + pointer.offset
            pointers.append((place // WORD, pointer.buffer, pointer.delta))
    content += bytes(-len(content) % _ALIGNED)
    memory = (ctypes.c_uint64 * (len(content) // WORD + _ALIGNED // WORD))()
    base = ctypes.addressof(memory)
    off = -base % _ALIGNED
    ctypes.memmove(base + off, bytes(content), len(content))
    moved = [(place + off // WORD, buffer, delta) for place, buffer, delta in pointers]
    arrays = [(c_void_p * max(len(places), 1))(*(base + off + place for place in places)) for places in starts]
    return memory, moved, arrays


def _config(step: Launch) -> LaunchConfig:
    config = LaunchConfig(step.grid, step.block, step.shared, None, None, 0)
    if step.cooperative:
        attribute = Attribute(COOPERATIVE)
        attribute.value.number = 1
        config.attributes = ctypes.pointer(attribute)
        config.attribute_count = 1
    return config


def _commands(
    recipe: Recipe, driver: Any, functions: Sequence[int], configs: Sequence[LaunchConfig], arrays: Sequence[Any]
) -> list[tuple[Any, Any, Fill | None]]:
    """For each step what to call, and with what; or the fill, whose arguments are others every time."""
    commands: list[tuple[Any, Any, Fill | None]] = []
    kernels = zip(functions, configs, arrays, strict=True)
    for step in recipe.steps:
        if isinstance(step, Fill):
            commands.append((driver.library.cuMemsetD8Async, None, step))
        else:
            function, config, parameters = next(kernels)
            args = (byref(config), c_void_p(function), parameters, None)
            commands.append((driver.library.cuLaunchKernelEx, args, None))
    return commands
