"""A recipe's steps on one device: cubins loaded, parameters laid out, ready to be given addresses and launched."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_void_p
from functools import partial
from typing import Any

from fusioncache.backends.nvfuser.driver import NO_CONTEXT, Driver, DriverError
from fusioncache.backends.nvfuser.recipe import WORD, Fill, Launch, Recipe

_ALIGNED = 64
"""Bytes that parameters are apart: no type of a parameter asks for more."""

_DEFAULT_STREAM = 1
"""The handle of torch's default stream, which says 0. To ``cuda.bindings`` 0 may be the default stream of a thread."""

_MAGIC = b"\x7fELF\x02\x01"
"""The start of an ELF file of 64 bits, lowest byte first."""
_HEADER = struct.Struct("<40xQ4xHHHHHH")
_SECTION = struct.Struct("<4xI16xQQ24x")
_PROGRAM = struct.Struct("<8xQ16xQ16x")
_NO_BITS = 8
_MACHINE = (190).to_bytes(2, "little")


class NothingLaunched(Exception):
    """The first step failed, so that nothing has happened yet."""


class LoadedSteps:
    """The steps of a recipe, whose cubins, given by their names, are loaded on the device of this number.

    The device must be the current one. One thread at a time may use the steps: another one uses steps of its own.

    Args:
        recipe: the steps.
        cubins: by their names.
        driver: the driver of CUDA.
        device: its number.
        functions: those of other steps of the same recipe and cubins on the same device, which are loaded already.

    Raises:
        ValueError: if a cubin and the recipe do not fit.
        DriverError: if a cubin does not load.

    Attributes:
        functions: the function of each launch.
    """

    def __init__(
        self,
        recipe: Recipe,
        cubins: Mapping[str, bytes],
        driver: Driver,
        device: int,
        functions: tuple[int, ...] | None = None,
    ):
        self._driver = driver
        self._device = device
        driver.bind(device)
        launches = recipe.launches
        self.functions = _load_functions(recipe, cubins, driver) if functions is None else functions
        self._words, self._pointers, self._arrays = _lay_out_parameters(launches)
        self._configs = [_configure(driver, step) for step in launches]
        self._stream: int | None = None
        kernels = iter(map(partial(_prepare_kernel, driver), self._configs, self.functions, self._arrays))
        fill = driver.bindings.cuMemsetD8Async
        self._commands: list[tuple[Callable[..., tuple[int]], Fill | None]] = [
            (fill, step) if isinstance(step, Fill) else (next(kernels), None) for step in recipe.steps
        ]

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        """Launches everything on a stream, given the addresses of the inputs and the allocations.

        Raises:
            NothingLaunched: if the first step fails.
            DriverError: if another one does.
        """
        stream = stream or _DEFAULT_STREAM
        words = self._words
        for index, buffer, delta in self._pointers:
            words[index] = addresses[buffer] + delta
        if stream != self._stream:
            self._stream = stream
            for config in self._configs:
                config.hStream = stream
        launched = False
        try:
            for call, fill in self._commands:
                args = () if fill is None else (addresses[fill.buffer] + fill.delta, fill.value, fill.size, stream)
                code = call(*args)[0]
                if code:
                    self._repeat(call, args, code)
                launched = True
        except (DriverError, KeyError, ValueError) as error:  # the latter two say that the bindings know no such result
            if not launched:
                raise NothingLaunched(str(error)) from error
            raise

    def _repeat(self, call: Callable[..., tuple[int]], args: Sequence[Any], code: int) -> None:
        """Repeats a call where that may help: a thread that only used torch's cached memory so far has no context."""
        if code == NO_CONTEXT:
            self._driver.bind(self._device)
            code = call(*args)[0]
        self._driver.check("launch", code)


def _load_functions(recipe: Recipe, cubins: Mapping[str, bytes], driver: Driver) -> tuple[int, ...]:
    modules = {name: driver.load(cubins[name]) for name in recipe.cubins}
    return tuple(_find_function(driver, modules[step.cubin], step) for step in recipe.launches)


def _find_function(driver: Driver, module: int, step: Launch) -> int:
    function = driver.function(module, step.function)
    if driver.parameter_sizes(function) != [*map(len, step.parameters)]:
        raise ValueError(f"a cubin whose {step.function} takes other parameters")
    driver.raise_shared_limit(function, step.most_shared)
    return function


def _lay_out_parameters(launches: Sequence[Launch]) -> tuple[Any, list[tuple[int, int, int]], list[Any]]:
    """Lays out all parameters in one piece of memory.

    Returns:
        The memory, seen as words; the index of each word that is an address, with its buffer and offset there; and for
        each launch the array of its parameters' addresses.
    """
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
            offset = starts[-1][pointer.parameter] + pointer.offset
            pointers.append((offset // WORD, pointer.buffer, pointer.delta))
    content += bytes(-len(content) % _ALIGNED)
    memory = (ctypes.c_uint64 * (len(content) // WORD + _ALIGNED // WORD))()
    base = ctypes.addressof(memory)
    shift = -base % _ALIGNED
    ctypes.memmove(base + shift, bytes(content), len(content))
    moved = [(index + shift // WORD, buffer, delta) for index, buffer, delta in pointers]
    arrays = [(c_void_p * max(len(own), 1))(*(base + shift + offset for offset in own)) for own in starts]
    return memory, moved, arrays


def _configure(driver: Driver, step: Launch) -> Any:
    """Returns the ``CUlaunchConfig`` of a launch, still without a stream."""
    config = driver.bindings.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = step.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = step.block
    config.sharedMemBytes = step.shared
    if step.cooperative:
        attribute = driver.bindings.CUlaunchAttribute()
        attribute.id = driver.launch_attribute_id("COOPERATIVE")
        attribute.value.cooperative = 1
        config.attrs, config.numAttrs = [attribute], 1
    return config


def _prepare_kernel(driver: Driver, config: Any, function: int, parameters: Any) -> Callable[[], tuple[int]]:
    """Returns what launches a kernel. Every conversion of an argument that is done here is spared in every call."""
    handle = driver.bindings.CUfunction(function)
    return partial(driver.bindings.cuLaunchKernelEx, config, handle, ctypes.addressof(parameters), 0)


def check_cubin(image: bytes) -> None:
    """Checks that all parts of a cubin lie inside it.

    The driver is not told how long a cubin is, and would read on behind its end.

    Raises:
        ValueError: if a part does not, or this is no cubin.
    """
    if not image.startswith(_MAGIC) or image[18:20] != _MACHINE or len(image) < _HEADER.size:
        raise ValueError("a cubin that is not an ELF file for a GPU")
    sections_at, _, program_bytes, programs, section_bytes, sections, _ = _HEADER.unpack_from(image)
    (programs_at,) = struct.unpack_from("<Q", image, 32)
    if (programs and program_bytes != _PROGRAM.size) or section_bytes != _SECTION.size:
        raise ValueError("a cubin that is not an ELF file for a GPU")
    parts = [(sections_at, sections * section_bytes), (programs_at, programs * program_bytes)]
    if any(offset + size > len(image) for offset, size in parts):
        raise ValueError("a cubin that is cut off")
    for number in range(sections):
        kind, offset, size = _SECTION.unpack_from(image, sections_at + number * section_bytes)
        if kind != _NO_BITS:
            parts.append((offset, size))
    for number in range(programs):
        parts.append(_PROGRAM.unpack_from(image, programs_at + number * program_bytes))
    if any(offset + size > len(image) for offset, size in parts):
        raise ValueError("a cubin that is cut off")
