"""The run of a recipe as one function that is written for it: nothing is looked up that a recipe fixes.

    def run(args):
        a0, a1 = args
        b0 = data_ptr(a0)
        b1 = data_ptr(a1)
        device = get_device(a0)
        steps = threads.get((device, current_thread()))
        if steps is None or (b0 | b1) % 16 or device != current_device():
            return otherwise(args)
        f0 = allocate0()
        b2 = data_ptr(f0)
        words = steps.words
        words[0] = b0
        words[8] = b1
        words[16] = b2 + 64
        stream = current_stream(device) or DEFAULT
        if stream != steps.stream:
            steps.use(stream)
        command0, = steps.commands
        try:
            code = command0()[0]
        except (KeyError, ValueError):
            return otherwise(args)
        if code:
            return otherwise(args)
        return [f0]

Until the first step is launched nothing has happened, and the general way does it all again, or better.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from fusioncache.backends.api import Run
from fusioncache.backends.nvfuser.launch import DEFAULT_STREAM, LoadedSteps, lay_out_parameters
from fusioncache.backends.nvfuser.outputs import Allocate, Written
from fusioncache.backends.nvfuser.recipe import Fill, Recipe

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
    exec(_compile("\n".join(write_text(recipe, outputs))), known)
    run: Run = known["run"]
    return run


@lru_cache(maxsize=1024)
def _compile(text: str) -> CodeType:
    """Recipes of layers that are alike give one text."""
    return compile(text, "fusioncache.nvfuser_run", "exec")


def write_text(recipe: Recipe, outputs: Sequence[Written]) -> Iterator[str]:
    """Yields the lines of the function, which returns such outputs."""
    inputs = range(len(recipe.inputs))
    yield "def run(args):"
    yield f"  {', '.join(f'a{index}' for index in inputs)}, = args"
    yield from (f"  b{index} = data_ptr(a{index})" for index in inputs)
    yield "  device = get_device(a0)"
    yield "  steps = threads.get((device, current_thread()))"
    yield f"  if steps is None or {_write_misalignment(recipe)} or device != current_device():"
    yield "    return otherwise(args)"
    fresh = [f"f{index}" for index in range(len(recipe.allocations))]
    for index, name in enumerate(fresh):
        yield f"  {name} = allocate{index}()"
        yield f"  b{len(inputs) + index} = data_ptr({name})"
    yield "  words = steps.words"
    for index, buffer, delta in lay_out_parameters(recipe.launches).pointers:
        yield f"  words[{index}] = b{buffer} + {delta}" if delta else f"  words[{index}] = b{buffer}"
    yield "  stream = current_stream(device) or DEFAULT"
    yield "  if stream != steps.stream:"
    yield "    steps.use(stream)"
    yield from _write_steps(recipe)
    yield from _write_return(outputs, fresh)


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


def _write_steps(recipe: Recipe) -> Iterator[str]:
    yield f"  {', '.join(f'command{index}' for index in range(len(recipe.steps)))}, = steps.commands"
    for index, step in enumerate(recipe.steps):
        args = f"b{step.buffer} + {step.delta}, {step.value}, {step.size}, stream" if isinstance(step, Fill) else ""
        if index:
            yield f"  code = command{index}({args})[0]"
            yield "  if code:"
            yield "    steps.fail(code)"
            continue
        yield "  try:"
        yield f"    code = command{index}({args})[0]"
        yield "  except (KeyError, ValueError):"
        yield "    return otherwise(args)"
        yield "  if code:"
        yield "    return otherwise(args)"
