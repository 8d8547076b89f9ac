"""A recipe as a function: it allocates, tells kernels where everything lies, launches them, and returns the outputs.

Where that is worth it, it is a function that is written for the recipe: nothing is looked up that a recipe fixes.

    def run(args):
        a0, a1 = args
        b0 = data_ptr(a0)
        b1 = data_ptr(a1)
        device = get_device(a0)
        steps = threads.get((device, current_thread()))
        if steps is None or (b0 | b1) % 16 or device != current_device():
            return otherwise(args)
        stream = current_stream(device) or DEFAULT
        if stream != steps.stream:
            steps.use(stream)
        f0 = allocate0()
        b2 = data_ptr(f0)
        words = steps.words
        words[0] = b0
        words[8] = b1
        words[16] = b2 + 64
        command0, = steps.commands
        try:
            code = command0()[0]
        except (KeyError, ValueError):
            return otherwise(args)
        if code:
            return otherwise(args)
        return [f0]

Until the first step is launched nothing has happened, and the general way does it all again, or better. What a recipe
fills with zeros before it launches anything is taken from memory that is zero already, see ``launch.py``:

        zeroed = steps.zeroed.take(stream)
        if not zeroed:
            return otherwise(args)
        b3 = zeroed + 512
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial, reduce
from operator import or_
from types import CodeType, MappingProxyType
from typing import Any

import torch
from torch._C._dynamo import guards

from fusioncache.backends.api import Run
from fusioncache.backends.nvfuser.driver import Driver, DriverError
from fusioncache.backends.nvfuser.launch import (
    DEFAULT_STREAM,
    LoadedSteps,
    Piece,
    check_cubin,
    find_zeroed,
    lay_out_parameters,
)
from fusioncache.backends.nvfuser.recipe import Duplicate, Fill, Fresh, Layout, Output, Recipe, View
from fusioncache.process import forks

_POISON = 255

# These two are as quick as can be. The first is for the current device; what the second makes is no view to autograd.
empty_strided: Any = getattr(guards, "_empty_strided_cuda", None)
reinterpret: Any = getattr(guards, "_reinterpret_tensor", None)

Allocate = Callable[[], Any]
"""Makes a tensor on the current GPU."""

Collect = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
"""Takes the arguments and the allocations, and returns the outputs."""

Make = Callable[[Sequence[Any], Sequence[Any]], Any]
"""Makes one output of the arguments and the allocations."""


Written = int | Duplicate | Make
"""An output: the allocation of this number, the same as an earlier output, or one that has to be made."""


def make_allocators(recipe: Recipe, poison: bool) -> list[Allocate]:
    """Returns what makes each allocation: the output that fills it, else bytes, which are all ones with ``poison``."""
    whole = find_whole_outputs(recipe, poison)
    return [
        _allocate_tensor(_layout_of(recipe, whole[index])) if index in whole else _allocate_bytes(size, poison)
        for index, size in enumerate(recipe.allocations)
    ]


def find_whole_outputs(recipe: Recipe, poison: bool) -> dict[int, int]:
    """Returns for each allocation that an output fills the index of the first. Takes what ``make_allocators`` takes."""
    found: dict[int, int] = {}
    for index, output in enumerate(() if poison else recipe.outputs):
        if isinstance(output, Fresh) and (output.offset, output.layout.extent) == (
            0,
            recipe.allocations[output.allocation],
        ):
            found.setdefault(output.allocation, index)
    return found


def _layout_of(recipe: Recipe, index: int) -> Layout:
    output = recipe.outputs[index]
    assert isinstance(output, Fresh)
    return output.layout


def _allocate_tensor(layout: Layout) -> Allocate:
    dtype, shape, strides = getattr(torch, layout.dtype), layout.shape, layout.strides
    if empty_strided is None:
        return partial(torch.empty_strided, shape, strides, dtype=dtype, device=torch.device("cuda"))
    return partial(empty_strided, shape, strides, dtype)


def _allocate_bytes(size: int, poison: bool) -> Allocate:
    if poison:
        return partial(torch.full, (size,), _POISON, dtype=torch.uint8, device=torch.device("cuda"))
    return _allocate_tensor(Layout("uint8", (size,), (1,)))


def write_outputs(recipe: Recipe, poison: bool) -> list[Written]:
    """Returns what each output is. Takes what ``make_allocators`` takes."""
    whole = find_whole_outputs(recipe, poison)
    return [_write_output(index, output, recipe, whole) for index, output in enumerate(recipe.outputs)]


def make_collector(outputs: Sequence[Written]) -> Collect:
    """Returns what makes such outputs."""

    def collect(args: Sequence[Any], fresh: Sequence[Any]) -> Sequence[Any]:
        collected: list[Any] = []
        for each in outputs:
            match each:
                case int():
                    collected.append(fresh[each])
                case Duplicate():
                    collected.append(collected[each.output])
                case _:
                    collected.append(each(args, fresh))
        return collected

    return collect


def _write_output(index: int, output: Output, recipe: Recipe, whole: Mapping[int, int]) -> Written:
    match output:
        case Duplicate():
            return output
        case View():
            return _make_view(output)
    allocation = output.allocation
    if whole.get(allocation) == index:
        return allocation
    if allocation in whole and reinterpret is not None:
        return _make_alias(output, _layout_of(recipe, whole[allocation]))
    return _make_part(output)


def _make_view(output: View) -> Make:
    """Returns what makes an output in the memory of an argument."""
    shape, strides = output.layout.shape, output.layout.strides
    index, offset = output.input, output.offset
    if output.itself:
        return lambda args, fresh: args[index]

    def view(args: Sequence[Any], fresh: Sequence[Any]) -> Any:
        arg = args[index].detach()  # autograd knows of nothing that a region does
        return arg.as_strided(shape, strides, arg.storage_offset() + offset)

    return view


def _make_alias(output: Fresh, of: Layout) -> Make:
    """Returns what makes an output in the memory of another one that fills it."""
    if output.layout.dtype != of.dtype:
        return _make_part(output)
    shape, strides, allocation = output.layout.shape, output.layout.strides, output.allocation
    first = output.offset // getattr(torch, of.dtype).itemsize
    return lambda args, fresh: reinterpret(fresh[allocation], shape, strides, first)


def _make_part(output: Fresh) -> Make:
    """Returns what makes an output of a part of an allocation."""
    dtype, shape, strides = getattr(torch, output.layout.dtype), output.layout.shape, output.layout.strides
    allocation, first = output.allocation, output.offset // getattr(torch, output.layout.dtype).itemsize

    def make(args: Sequence[Any], fresh: Sequence[Any]) -> Any:
        # A tensor of its own rather than a view: other code does not know what it shares its memory with.
        memory = fresh[allocation]
        tensor = torch.empty(0, dtype=dtype, device=memory.device)
        return tensor.set_(memory.untyped_storage(), first, shape, strides)

    return make


MOST_BUFFERS = 256
"""With more of them nothing is written: what is around the loops is little of what these take."""


def can_write(recipe: Recipe) -> bool:
    """True if there is anything to write for a recipe."""
    return bool(recipe.inputs and recipe.steps) and len(recipe.extents) <= MOST_BUFFERS


def write_run(
    recipe: Recipe,
    otherwise: Run,
    threads: Mapping[tuple[int, int], LoadedSteps],
    functions: Mapping[str, Callable[..., Any]],
    allocators: Sequence[Allocate],
    outputs: Sequence[Written],
    zeroed: Piece,
) -> Run:
    """Returns a function that launches a recipe.

    Args:
        recipe: one for which ``can_write``.
        otherwise: does the same in general, and what has to be done once for each thread.
        threads: the steps of each device and thread.
        functions: of torch's: ``data_ptr`` and ``get_device`` of a tensor, ``current_device``, and ``current_stream``
            of a device.
        allocators: make the allocations.
        outputs: what each output is.
        zeroed: the allocations that are not made, but are in memory that is zero already.
    """
    known: dict[str, Any] = {
        **functions,
        "otherwise": otherwise,
        "threads": threads,
        "current_thread": threading.get_ident,
        "DEFAULT": DEFAULT_STREAM,
        **{f"allocate{index}": allocate for index, allocate in enumerate(allocators)},
        **{f"make{index}": output for index, output in enumerate(outputs) if callable(output)},
    }
    exec(_compile("\n".join(write_text(recipe, outputs, zeroed))), known)
    run: Run = known["run"]
    return run


@lru_cache(maxsize=1024)
def _compile(text: str) -> CodeType:
    """Recipes of layers that are alike give one text."""
    return compile(text, "fusioncache.nvfuser_run", "exec")


def write_text(recipe: Recipe, outputs: Sequence[Written], zeroed: Piece) -> Iterator[str]:
    """Yields the lines of the function, which returns such outputs."""
    inputs = range(len(recipe.inputs))
    yield "def run(args):"
    yield f"  {', '.join(f'a{index}' for index in inputs)}, = args"
    yield from (f"  b{index} = data_ptr(a{index})" for index in inputs)
    yield "  device = get_device(a0)"
    yield "  steps = threads.get((device, current_thread()))"
    yield f"  if steps is None or {_write_misalignment(recipe)} or device != current_device():"
    yield "    return otherwise(args)"
    yield "  stream = current_stream(device) or DEFAULT"
    yield "  if stream != steps.stream:"
    yield "    steps.use(stream)"
    yield from _write_allocations(recipe, zeroed)
    yield "  words = steps.words"
    for index, buffer, delta in lay_out_parameters(recipe.launches).pointers:
        yield f"  words[{index}] = b{buffer} + {delta}" if delta else f"  words[{index}] = b{buffer}"
    yield from _write_steps(recipe, {len(inputs) + index for index in zeroed.places})
    yield from _write_return(outputs, [_name_fresh(index, zeroed) for index in range(len(recipe.allocations))])


def _write_allocations(recipe: Recipe, zeroed: Piece) -> Iterator[str]:
    if zeroed.places:
        yield "  zeroed = steps.zeroed.take(stream)"
        yield "  if not zeroed:"
        yield "    return otherwise(args)"
    for index in range(len(recipe.allocations)):
        buffer, place = len(recipe.inputs) + index, zeroed.places.get(index)
        if place is None:
            yield f"  f{index} = allocate{index}()"
            yield f"  b{buffer} = data_ptr(f{index})"
        else:
            yield f"  b{buffer} = zeroed + {place}" if place else f"  b{buffer} = zeroed"


def _name_fresh(index: int, zeroed: Piece) -> str:
    return "None" if index in zeroed.places else f"f{index}"


def _write_return(outputs: Sequence[Written], fresh: Sequence[str]) -> Iterator[str]:
    """Yields the lines that make the outputs, in their order, of arguments and of allocations of these names."""
    names: list[str] = []
    for index, output in enumerate(outputs):
        if callable(output):
            yield f"  o{index} = make{index}(args, ({''.join(f'{name}, ' for name in fresh)}))"
            names.append(f"o{index}")
        else:
            names.append(fresh[output] if isinstance(output, int) else names[output.output])
    yield f"  return [{', '.join(names)}]"


def _write_misalignment(recipe: Recipe) -> str:
    """Returns the condition under which addresses are aligned otherwise than those that the recipe is for."""
    widest, addresses = recipe.widest, [f"b{index}" for index in range(len(recipe.inputs))]
    least = [input_.alignment for input_ in recipe.inputs]
    common = " | ".join(name for name, alignment in zip(addresses, least, strict=True) if alignment == widest)
    others = [
        f"{name} % {2 * alignment} != {alignment}"
        for name, alignment in zip(addresses, least, strict=True)
        if alignment != widest
    ]
    return " or ".join([*([f"({common}) % {widest}"] if common else []), *others])


def _write_steps(recipe: Recipe, zeroed: Collection[int]) -> Iterator[str]:
    """Yields the lines that launch the steps, but for those that fill the buffers that are zero already."""
    steps = [(f"command{index}", step) for index, step in enumerate(recipe.steps)]
    yield f"  {', '.join(command for command, _ in steps)}, = steps.commands"
    left = [(command, step) for command, step in steps if not (isinstance(step, Fill) and step.buffer in zeroed)]
    for index, (command, step) in enumerate(left):
        args = f"b{step.buffer} + {step.delta}, {step.value}, {step.size}, stream" if isinstance(step, Fill) else ""
        if index:
            yield f"  code = {command}({args})[0]"
            yield "  if code:"
            yield "    steps.fail(code)"
            continue
        yield "  try:"
        yield f"    code = {command}({args})[0]"
        yield "  except (KeyError, ValueError):"
        yield "    return otherwise(args)"
        yield "  if code:"
        yield "    return otherwise(args)"


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
    """Returns a test whether addresses are aligned as those that the recipe is for: neither less nor more.

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
