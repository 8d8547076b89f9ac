"""A recipe's steps on one device: cubins loaded, parameters laid out, ready to be given addresses and launched.

Blocks of threads that wait for each other count in memory which has to be zero at first. nvFuser fills it before each
launch, and to launch a fill takes the host as long as to launch a kernel. Here one fill zeroes a block of memory, of
which each launch is given another piece. Once all pieces were given away, the block is filled again. That comes behind
all launches that have a piece of it, since it goes to the same stream. A graph that is captured has a fill of its own
for each launch: its replays find the same piece each time.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from fusioncache.backends.nvfuser.driver import NO_CONTEXT, Driver, DriverError
from fusioncache.backends.nvfuser.recipe import WORD, Fill, Fresh, Launch, Recipe

_ZEROED_ALIGNMENT = 512
"""Bytes that pieces are apart: torch's own allocations begin at a multiple."""
MOST_BYTES = 4096
"""Bytes that a launch is given in this way at most: to fill more takes a GPU longer than the host to launch that."""
BLOCK = 2**16
"""Bytes that are filled at once: those of 128 launches, if each has 512."""

# Torch without CUDA does not have this one.
is_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one launch of a recipe is given.

    Attributes:
        places: where each allocation that is in it begins, by its index among the recipe's.
        size: its bytes.
    """

    places: Mapping[int, int]
    size: int


def allocate_bytes(size: int) -> Any:
    """Returns a tensor of so many bytes on the current GPU, whatever is in them."""
    return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda"))


def find_zeroed(recipe: Recipe) -> Piece:
    """Finds the allocations that lie in a piece, and whose fills a launch does without.

    The whole of each is filled with zeros once, before anything is launched that is given it, and it is in no output.
    """
    outputs = {output.allocation for output in recipe.outputs if isinstance(output, Fresh)}
    places: dict[int, int] = {}
    end = 0
    for index, size in enumerate(recipe.allocations):
        reached = end + size + -size % _ZEROED_ALIGNMENT
        if index not in outputs and reached <= MOST_BYTES and _is_zeroed_first(recipe, index):
            places[index], end = end, reached
    return Piece(MappingProxyType(places), end)


def _is_zeroed_first(recipe: Recipe, allocation: int) -> bool:
    buffer = len(recipe.inputs) + allocation
    users = [step for step in recipe.steps if _uses(step, buffer)]
    fills = [step for step in users if isinstance(step, Fill)]
    return fills == users[:1] == [Fill(buffer, 0, recipe.allocations[allocation], 0)]


def _uses(step: Any, buffer: int) -> bool:
    if isinstance(step, Fill):
        return step.buffer == buffer
    return any(pointer.buffer == buffer for pointer in step.pointers)


class ZeroedMemory:
    """Gives each launch of one recipe, by one thread on one device, its piece of a block, which stays.

    Args:
        size: bytes of a piece, a multiple of 512.
        fill: fills memory: takes an address, a value, bytes and a stream; returns a tuple whose first item is 0 if
            nothing failed.
    """

    __slots__ = ("_block", "_end", "_fill", "_next", "_size", "_stream")

    def __init__(self, size: int, fill: Callable[..., tuple[int]]):
        self._size = size
        self._fill = fill
        self._block: Any = None
        self._stream: int | None = None
        self._next = self._end = 0

    def take(self, stream: int) -> int:
        """Returns the address of a piece for a launch on this stream, the current one of the current device.

        Returns:
            0 if there is none now: because a graph is captured, or because the fill failed.
        """
        if is_capturing():
            return 0
        address = self._next
        if (address == self._end or stream != self._stream) and not (address := self._renew(stream)):
            return 0
        self._next = address + self._size
        return address

    def _renew(self, stream: int) -> int:
        """Fills the block, or on another stream a new one; returns its address, and 0 if that failed."""
        self._next = self._end = 0
        size = BLOCK // self._size * self._size
        if self._block is None or stream != self._stream:
            # The old one is used on the old stream until its launches are done, and then given to that one only.
            self._block, self._stream = allocate_bytes(size), stream
        address: int = self._block.data_ptr()
        try:
            code = self._fill(address, 0, size, stream)[0]
        except (KeyError, ValueError):  # the bindings know no such result
            return 0
        if code:
            return 0
        self._end = address + size
        return address


_ALIGNED = 64
"""Bytes that parameters are apart: no type of a parameter asks for more."""

DEFAULT_STREAM = 1
"""The handle of torch's default stream, which says 0. To ``cuda.bindings`` 0 may be the default stream of a thread."""

_MAGIC = b"\x7fELF\x02\x01"
"""The start of an ELF file of 64 bits, lowest byte first."""
_HEADER = struct.Struct("<40xQ4xHHHHHH")
_SECTION = struct.Struct("<4xI16xQQ24x")
_PROGRAM = struct.Struct("<8xQ16xQ16x")
_NO_BITS = 8
_MACHINE = (190).to_bytes(2, "little")


Command = Callable[..., tuple[int]]
"""Launches one step, and returns the driver's result."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of launches, laid out.

    Attributes:
        content: their bytes, with zeros in place of addresses. The first lies at a multiple of 64.
        pointers: for each address among them, the index of its word, the buffer that it points into, and how far in
            bytes from the start of that.
        starts: for each launch, where its parameters begin.
    """

    content: bytes
    pointers: tuple[tuple[int, int, int], ...]
    starts: tuple[tuple[int, ...], ...]


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
        words: all parameters as words: a launch of a command writes the addresses into them, see ``Parameters``.
        commands: for each step what does it. A launch takes no arguments, a fill an address, a value, bytes and a
            stream; both return a tuple whose first item is 0 if nothing failed.
        stream: the one that launches go to.
        zeroed: memory for those who launch commands without the fills that ``find_zeroed`` finds.
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
        launches, parameters = recipe.launches, lay_out_parameters(recipe.launches)
        self.functions = _load_functions(recipe, cubins, driver) if functions is None else functions
        self.words, self._arrays = _place(parameters)
        self.stream: int | None = None
        self._pointers = parameters.pointers
        self._configs = [_configure(driver, step) for step in launches]
        self._fills = [step if isinstance(step, Fill) else None for step in recipe.steps]
        kernels = iter(map(partial(_prepare_kernel, driver), self._configs, self.functions, self._arrays))
        fill = driver.bindings.cuMemsetD8Async
        self.commands: list[Command] = [fill if step else next(kernels) for step in self._fills]
        self.zeroed = ZeroedMemory(find_zeroed(recipe).size, fill)

    def use(self, stream: int) -> None:
        """Has all launches from now on go to a stream."""
        self.stream = stream
        for config in self._configs:
            config.hStream = stream

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        """Launches everything on a stream, given the addresses of the inputs and the allocations.

        Raises:
            DriverError: if a step fails. If it is the first, ``launched`` is false.
        """
        stream, words = stream or DEFAULT_STREAM, self.words
        for index, buffer, delta in self._pointers:
            words[index] = addresses[buffer] + delta
        if stream != self.stream:
            self.use(stream)
        launched = False
        try:
            for call, fill in zip(self.commands, self._fills, strict=True):
                args = () if fill is None else (addresses[fill.buffer] + fill.delta, fill.value, fill.size, stream)
                code = call(*args)[0]
                if code:
                    self._repeat(call, args, code)
                launched = True
        except (DriverError, KeyError, ValueError) as error:  # the latter two say that the bindings know no such result
            if not launched:
                raise DriverError(str(error), launched=False) from error
            raise

    def _repeat(self, call: Callable[..., tuple[int]], args: Sequence[Any], code: int) -> None:
        """Repeats a call where that may help: a thread that only used torch's cached memory so far has no context."""
        if code == NO_CONTEXT:
            self._driver.bind(self._device)
            code = call(*args)[0]
        self.fail(code)

    def fail(self, code: int) -> None:
        """Raises what a result of a launch says; nothing if that is 0.

        Raises:
            DriverError: for any other.
        """
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


def lay_out_parameters(launches: Sequence[Launch]) -> Parameters:
    """Lays out the parameters of all launches in one piece of memory."""
    content = bytearray()
    pointers: list[tuple[int, int, int]] = []
    starts: list[tuple[int, ...]] = []
    for step in launches:
        own: list[int] = []
        for parameter in step.parameters:
            content += bytes(-len(content) % _ALIGNED)
            own.append(len(content))
            content += parameter
        for pointer in step.pointers:
            offset = own[pointer.parameter] + pointer.offset
            pointers.append((offset // WORD, pointer.buffer, pointer.delta))
        starts.append(tuple(own))
    content += bytes(-len(content) % _ALIGNED)
    return Parameters(bytes(content), tuple(pointers), tuple(starts))


def _place(parameters: Parameters) -> tuple[memoryview, list[Any]]:
    """Returns memory with these parameters, seen as words, and for each launch the array of their addresses."""
    size = len(parameters.content)
    memory = (ctypes.c_char * (size + _ALIGNED))()
    shift = -ctypes.addressof(memory) % _ALIGNED
    base = ctypes.addressof(memory) + shift
    ctypes.memmove(base, parameters.content, size)
    words = memoryview(memory).cast("B")[shift : shift + size].cast("Q")
    return words, [(c_void_p * max(len(own), 1))(*(base + offset for offset in own)) for own in parameters.starts]


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
