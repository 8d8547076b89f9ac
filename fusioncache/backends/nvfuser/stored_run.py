"""A recipe as a function that allocates memory, passes addresses to kernels, launches them, and returns the outputs.

The function is generated for the recipe, so that it contains all that a recipe fixes as constants:

    def run(args):
        a0, a1, = args
        b0 = data_ptr(a0)
        b1 = data_ptr(a1)
        if (b0 | b1) % 16:
            return fallback(args)
        device = get_device(a0)
        steps = threads.get((device, current_thread()))
        if steps is None or device != current_device():
            return prepare(args, device)
        stream = current_stream(device) or DEFAULT
        if stream != steps.stream:
            steps.use(stream)
        f0 = allocate((4, 8), (8, 1), torch.float32)
        b2 = data_ptr(f0)
        words = steps.words
        words[0] = b0
        words[8] = b1
        words[16] = b2 + 64
        command0, = steps.commands
        try:
            code = command0()[0]
            if code == NO_CONTEXT:
                bind(device)
                code = command0()[0]
        except (DriverError, KeyError, ValueError) as error:
            return give_up(args, device, error)
        if code:
            return give_up(args, device, code)
        o0 = f0
        return [o0]

Until the first step is launched there are no effects, and the region can still be computed in another way.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CodeType
from typing import Any

import torch
from torch._C._dynamo import guards

from fusioncache.backends.api import Run
from fusioncache.backends.nvfuser.driver import NO_CONTEXT, Driver, DriverError
from fusioncache.backends.nvfuser.recipe import (
    ITEM_BYTES,
    WORD,
    Duplicate,
    Fill,
    Fresh,
    Launch,
    Layout,
    Output,
    Recipe,
    View,
    check_cubin,
)
from fusioncache.process import forks
from fusioncache.process.warning import logger

MOST_THREADS = 64
"""The most threads that have steps at a time."""
DEFAULT_STREAM = 1
"""The handle of torch's default stream, for which torch returns 0. In ``cuda.bindings`` 0 may be the per-thread one."""
_ALIGNED = 64
"""The alignment of parameters, in bytes: no type of a parameter requires more."""
_POISON = 255

Command = Callable[..., tuple[int]]
"""Launches one step, and returns the driver's result code."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of launches in one piece of memory.

    Attributes:
        content: their bytes, with zeros in place of addresses. It must start at a multiple of 64.
        pointers: for each address among them, the index of its word, the buffer that it points into, and the offset in
            bytes from the start of the buffer.
        starts: for each launch, the offsets of its parameters.
    """

    content: bytes
    pointers: tuple[tuple[int, int, int], ...]
    starts: tuple[tuple[int, ...], ...]


def lay_out_parameters(launches: Sequence[Launch]) -> Parameters:
    """Returns the parameters of all launches in one piece of memory."""
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


class LoadedSteps:
    """The steps of a recipe, with its functions loaded on a device.

    Only one thread at a time may use the steps: each thread has separate ones.

    Args:
        recipe: the steps.
        functions: the function of each launch.
        driver: the driver of CUDA.

    Attributes:
        functions: as given.
        words: all parameters as words. Addresses are written into them before a launch: see ``Parameters``.
        commands: for each step a function. A launch takes no arguments, a fill an address, a value, bytes and a stream;
            both return a tuple whose first item is 0 on success.
        stream: the stream of the launches.
    """

    def __init__(self, recipe: Recipe, functions: tuple[int, ...], driver: Driver):
        launches = recipe.launches
        self.functions = functions
        self.words, self._arrays = _place(lay_out_parameters(launches))
        self.stream: int | None = None
        self._configs = [_configure(driver, step) for step in launches]
        kernels = map(partial(_prepare_kernel, driver), self._configs, functions, self._arrays)
        fill = driver.bindings.cuMemsetD8Async
        self.commands: list[Command] = [fill if isinstance(step, Fill) else next(kernels) for step in recipe.steps]

    def use(self, stream: int) -> None:
        """Sends all launches from now on to a stream."""
        self.stream = stream
        for config in self._configs:
            config.hStream = stream


def _load_functions(recipe: Recipe, cubins: Mapping[str, bytes], driver: Driver, device: int) -> tuple[int, ...]:
    modules = {name: driver.load(cubins[name], device) for name in recipe.cubins}
    return tuple(_find_function(driver, modules[step.cubin], step) for step in recipe.launches)


def _find_function(driver: Driver, module: int, step: Launch) -> int:
    function = driver.function(module, step.function)
    if driver.parameter_sizes(function) != [*map(len, step.parameters)]:
        raise ValueError(f"a cubin whose {step.function} takes other parameters")
    driver.raise_shared_limit(function, step.most_shared)
    return function


def _place(parameters: Parameters) -> tuple[memoryview, list[Any]]:
    """Returns memory with these parameters, as words, and for each launch the array of its parameters' addresses."""
    size = len(parameters.content)
    memory = (ctypes.c_char * (size + _ALIGNED))()
    shift = -ctypes.addressof(memory) % _ALIGNED
    base = ctypes.addressof(memory) + shift
    ctypes.memmove(base, parameters.content, size)
    words = memoryview(memory).cast("B")[shift : shift + size].cast("Q")
    return words, [(c_void_p * max(len(own), 1))(*(base + offset for offset in own)) for own in parameters.starts]


def _configure(driver: Driver, step: Launch) -> Any:
    """Returns the ``CUlaunchConfig`` of a launch, without a stream yet."""
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
    """Returns a function that launches a kernel. Arguments are converted here, not in every call."""
    handle = driver.bindings.CUfunction(function)
    return partial(driver.bindings.cuLaunchKernelEx, config, handle, ctypes.addressof(parameters), 0)


def find_whole_outputs(recipe: Recipe) -> dict[int, tuple[int, Layout]]:
    """Returns for each allocation that an output fills the index and the layout of the first such output."""
    found: dict[int, tuple[int, Layout]] = {}
    for index, output in enumerate(recipe.outputs):
        if isinstance(output, Fresh):
            size = recipe.allocations[output.allocation]
            if (output.offset, output.layout.extent) == (0, size):
                found.setdefault(output.allocation, (index, output.layout))
    return found


def _lay_out_allocations(recipe: Recipe) -> list[Layout]:
    """Returns the layout of each allocation: that of the output that fills it, or bytes."""
    layouts = {index: Layout("uint8", (size,), (1,)) for index, size in enumerate(recipe.allocations)}
    layouts |= {index: layout for index, (_, layout) in find_whole_outputs(recipe).items()}
    return list(layouts.values())


def _allocate_poisoned(*layout: Any) -> Any:
    """Returns a tensor on the current GPU with all bits set."""
    tensor = guards._empty_strided_cuda(*layout)  # type: ignore[attr-defined]
    tensor.untyped_storage().fill_(_POISON)
    return tensor


def _make_view(arg: Any, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
    """Returns an output in the memory of an argument."""
    arg = arg.detach()  # autograd does not record a region's operations
    return arg.as_strided(shape, strides, arg.storage_offset() + offset)


def _make_part(memory: Any, shape: Sequence[int], strides: Sequence[int], first: int, dtype: torch.dtype) -> Any:
    """Returns an output in a part of an allocation: a separate tensor rather than a view.

    Other code does not know which tensors share its memory.
    """
    return torch.empty(0, dtype=dtype, device=memory.device).set_(memory.untyped_storage(), first, shape, strides)


def write_run(recipe: Recipe, names: dict[str, Any]) -> Run:
    """Returns a function that launches a recipe. ``names`` are its globals: see the module."""
    exec(_compile("\n".join(write_text(recipe))), names)
    run: Run = names["run"]
    return run


@lru_cache(maxsize=1024)
def _compile(text: str) -> CodeType:
    """Returns the code object of a text. Recipes of equal layers share one text."""
    return compile(text, "fusioncache.nvfuser_run", "exec")


def write_text(recipe: Recipe) -> Iterator[str]:
    """Yields the lines of the function that launches a recipe and returns its outputs."""
    inputs = range(len(recipe.inputs))
    yield "def run(args):"
    if inputs:
        yield f"  {', '.join(f'a{index}' for index in inputs)}, = args"
        yield from (f"  b{index} = data_ptr(a{index})" for index in inputs)
        yield f"  if {_write_misalignment(recipe)}:"
        yield "    return fallback(args)"
    yield f"  device = {'get_device(a0)' if inputs else 'home'}"
    yield "  steps = threads.get((device, current_thread()))"
    yield "  if steps is None or device != current_device():"
    yield "    return prepare(args, device)"
    yield "  stream = current_stream(device) or DEFAULT"
    yield "  if stream != steps.stream:"
    yield "    steps.use(stream)"
    for index, layout in enumerate(_lay_out_allocations(recipe)):
        yield f"  f{index} = allocate({layout.shape}, {layout.strides}, torch.{layout.dtype})"
        yield f"  b{len(inputs) + index} = data_ptr(f{index})"
    yield "  words = steps.words"
    for index, buffer, delta in lay_out_parameters(recipe.launches).pointers:
        yield f"  words[{index}] = b{buffer} + {delta}" if delta else f"  words[{index}] = b{buffer}"
    yield from _write_steps(recipe)
    whole = find_whole_outputs(recipe)
    for index, output in enumerate(recipe.outputs):
        yield f"  o{index} = {_write_output(index, output, whole)}"
    yield f"  return [{', '.join(f'o{index}' for index in range(len(recipe.outputs)))}]"


def _write_output(index: int, output: Output, whole: Mapping[int, tuple[int, Layout]]) -> str:
    """Returns an output as an expression."""
    if isinstance(output, Duplicate):
        return f"o{output.output}"
    layout = f"{output.layout.shape}, {output.layout.strides}"
    if isinstance(output, View):
        return f"a{output.input}" if output.itself else f"make_view(a{output.input}, {layout}, {output.offset})"
    first, filling = whole.get(output.allocation, (None, None))
    if first == index:
        return f"f{output.allocation}"
    dtype = output.layout.dtype
    place = f"f{output.allocation}, {layout}, {output.offset // ITEM_BYTES[dtype]}"
    if filling is not None and filling.dtype == dtype:
        return f"reinterpret({place})"  # thrice as fast as a part
    return f"make_part({place}, torch.{dtype})"


def _write_misalignment(recipe: Recipe) -> str:
    """Returns the condition under which addresses have other alignments than those that the recipe is for.

    A larger alignment would do no harm, but the compiler would choose other kernels for it, which might sum in another
    order. With a smaller one, a kernel may load 16 bytes from a misaligned address, which ends the process.
    """
    widest, addresses = recipe.widest, [f"b{index}" for index in range(len(recipe.inputs))]
    least = [input_.alignment for input_ in recipe.inputs]
    common = " | ".join(name for name, alignment in zip(addresses, least, strict=True) if alignment == widest)
    others = [
        f"{name} % {2 * alignment} != {alignment}"
        for name, alignment in zip(addresses, least, strict=True)
        if alignment != widest
    ]
    return " or ".join([*([f"({common}) % {widest}"] if common else []), *others])


def _write_steps(recipe: Recipe) -> Iterator[str]:
    """Yields the lines that launch the steps. A thread that has only used torch's cached memory has no context yet."""
    for index, step in enumerate(recipe.steps):
        args = f"b{step.buffer} + {step.delta}, {step.value}, {step.size}, stream" if isinstance(step, Fill) else ""
        call = f"code = command{index}({args})[0]"
        if index:
            yield f"  {call}"
            yield "  if code:"
            yield "    fail(code)"
            continue
        yield f"  {', '.join(f'command{each}' for each in range(len(recipe.steps)))}, = steps.commands"
        yield "  try:"
        yield f"    {call}"
        yield "    if code == NO_CONTEXT:"
        yield "      bind(device)"
        yield f"      {call}"
        yield "  except (DriverError, KeyError, ValueError) as error:"
        yield "    return give_up(args, device, error)"
        yield "  if code:"
        yield "    return give_up(args, device, code)"


data_ptr, _get_device = torch.Tensor.data_ptr, torch.Tensor.get_device
# Torch without CUDA has neither.
_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class StoredRun:
    """Launches a recipe on the GPU of its arguments, on the current stream, from any number of threads.

    Args:
        recipe: what to launch.
        cubins: the cubins by name.
        fallback: computes the same for arguments with other alignments than those of the recipe.
        driver: the driver of CUDA.
        home: the number of the GPU that a recipe without inputs is for.
        poison: whether new memory is filled with ones first, so that reads before writes are detected.

    Attributes:
        run: takes the arguments and returns the outputs.
    """

    def __init__(
        self,
        recipe: Recipe,
        cubins: Mapping[str, bytes],
        fallback: Run,
        driver: Driver,
        home: int,
        *,
        poison: bool = False,
    ):
        _check_cubins(recipe, cubins)
        self._recipe = recipe
        self._cubins = cubins
        self._fallback = fallback
        self._driver = driver
        self._home = home
        self._threads: dict[tuple[int, int], LoadedSteps] = {}
        self._functions: dict[int, tuple[int, ...]] = {}
        self._loading = forks.lock()
        self._broken: set[int] = set()
        self.run = write_run(recipe, self._list_names(poison))

    def load(self, device: int) -> LoadedSteps:
        """Returns this thread's steps on a device, which must be the current one. So no thread waits for another.

        Raises:
            ValueError: if they do not fit the cubins.
            DriverError: if a cubin does not load.
        """
        with self._loading:
            own = device, threading.get_ident()
            steps = self._threads.get(own)
            if steps is None:
                if len(self._threads) >= MOST_THREADS:  # most of these threads have ended
                    self._threads.clear()
                self._driver.bind(device)
                if device not in self._functions:
                    self._functions[device] = _load_functions(self._recipe, self._cubins, self._driver, device)
                steps = self._threads[own] = LoadedSteps(self._recipe, self._functions[device], self._driver)
            return steps

    def launching(self, fallback: Run) -> StoredRun:
        """Returns another run of the same recipe, without poison. ``fallback`` is for arguments that it is not for.

        Cubins that are loaded for this one are not loaded again.
        """
        other = StoredRun(self._recipe, self._cubins, fallback, self._driver, self._home)
        other._functions |= self._functions
        return other

    def _list_names(self, poison: bool) -> dict[str, Any]:
        """Returns the globals of the function that is generated for the recipe."""
        return {
            "torch": torch,
            # The fastest ways to make tensors. Torch's stubs lack them.
            "allocate": _allocate_poisoned if poison else guards._empty_strided_cuda,  # type: ignore[attr-defined]
            "reinterpret": guards._reinterpret_tensor,  # type: ignore[attr-defined]
            "make_view": _make_view,
            "make_part": _make_part,
            "data_ptr": data_ptr,
            "get_device": _get_device,
            "current_device": _current_device,
            "current_stream": _current_stream,
            "current_thread": threading.get_ident,
            "DEFAULT": DEFAULT_STREAM,
            "NO_CONTEXT": NO_CONTEXT,
            "DriverError": DriverError,
            "home": self._home,
            "threads": self._threads,
            "fallback": self._fallback,
            "prepare": self._prepare,
            "bind": self._driver.bind,
            "fail": partial(self._driver.check, "launch"),
            "give_up": self._give_up,
        }

    def _prepare(self, args: Sequence[Any], device: int) -> Sequence[Any]:
        """Runs after it makes the device the current one, or loads its steps for this thread."""
        if device in self._broken:
            return self._fallback(args)
        if _current_device() != device:
            with torch.cuda.device(device):
                return self.run(args)
        try:
            self.load(device)
        except (ValueError, DriverError) as error:
            return self._give_up(args, device, error)
        return self.run(args)

    def _give_up(self, args: Sequence[Any], device: int, why: int | Exception) -> Sequence[Any]:
        """Computes in another way, now and from now on, because steps do not load or launch on a device."""
        self._broken.add(device)
        with self._loading:
            for own in [each for each in self._threads if each[0] == device]:
                del self._threads[own]
        said = self._driver.describe_result(why) if isinstance(why, int) else why
        logger.warning("a stored kernel does not launch, so its region is compiled: %s", said)
        return self._fallback(args)


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
