"""The run of a recipe as one function that is written for it: nothing is looked up that a recipe fixes.

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
fills with zeros before it launches anything is taken from memory that is zero already, see ``zeroed_memory.py``:

        zeroed = steps.zeroed.take(stream)
        if not zeroed:
            return otherwise(args)
        b3 = zeroed + 512
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from fusioncache.backends.api import Run
from fusioncache.backends.nvfuser.launch import DEFAULT_STREAM, LoadedSteps, lay_out_parameters
from fusioncache.backends.nvfuser.outputs import Allocate, Written
from fusioncache.backends.nvfuser.recipe import Fill, Recipe
from fusioncache.backends.nvfuser.zeroed_memory import Piece

MOST_BUFFERS = 256
"""With more of them nothing is written: what is around the loops is little of what these take."""


def can_write(recipe: Recipe) -> bool:
    """Tells whether there is anything to write for a recipe."""
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
