"""Whether the parts of a recipe fit together."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from fusioncache.backends.nvfuser.limits import (
    BLOCK,
    GRID,
    MOST_BYTES,
    MOST_PARAMETER_BYTES,
    MOST_SHARED,
    THREADS,
    require,
    whole,
)
from fusioncache.backends.nvfuser.parts import (
    CUBIN,
    ITEM_BYTES,
    WORD,
    Again,
    Fill,
    Fresh,
    Launch,
    Layout,
    Memory,
    Output,
    Pointer,
    Step,
)


def check_step(step: Step, memory: Memory) -> None:
    """Refuses a step that reaches beyond its memory or the limits of a GPU."""
    _check_fill(step, memory) if isinstance(step, Fill) else _check_launch(step, memory)


def check_output(output: Output, earlier: Sequence[Output], memory: Memory) -> None:
    """Refuses an output that reaches beyond its memory, or is the same as one that is not earlier."""
    if isinstance(output, Again):
        whole(output.output, 0, len(earlier) - 1, "an output")
        require(not isinstance(earlier[output.output], Again), "an output")
        return
    require(isinstance(output.layout, Layout), "a layout")
    whole(output.offset, 0, MOST_BYTES, "an offset")
    if isinstance(output, Fresh):
        whole(output.allocation, 0, len(memory.allocations) - 1, "an allocation")
        require(output.offset % ITEM_BYTES[output.layout.dtype] == 0, "an offset")
        require(output.offset + output.layout.extent <= memory.allocations[output.allocation], "an extent")
        return
    whole(output.input, 0, len(memory.inputs) - 1, "an input")
    source = memory.inputs[output.input].layout
    require(type(output.itself) is bool and source.dtype == output.layout.dtype, "a view")
    require(not output.itself or (output.offset == 0 and source == output.layout), "a view")
    require(output.offset * ITEM_BYTES[source.dtype] + output.layout.extent <= source.extent, "an extent")


def _check_launch(step: Launch, memory: Memory) -> None:
    require(isinstance(step.cubin, str) and step.cubin.endswith(CUBIN) and len(step.cubin) < 64, "a cubin")
    require(isinstance(step.function, str) and 0 < len(step.function) < 65536, "a function")
    require(step.function.isascii() and step.function.isprintable(), "a function")
    for sizes, most in ((step.grid, GRID), (step.block, BLOCK)):
        require(type(sizes) is tuple and len(sizes) == 3, "a grid or a block")
        for size, limit in zip(sizes, most, strict=True):
            whole(size, 1, limit, "a grid or a block")
    require(prod(step.block) <= THREADS, "a block")
    whole(step.shared, 0, MOST_SHARED, "shared memory")
    whole(step.most_shared, step.shared, MOST_SHARED, "shared memory")
    require(type(step.cooperative) is bool, "cooperative")
    require(type(step.parameters) is tuple and all(type(item) is bytes for item in step.parameters), "parameters")
    require(sum(map(len, step.parameters)) <= MOST_PARAMETER_BYTES and b"" not in step.parameters, "parameters")
    require(type(step.pointers) is tuple and all(isinstance(item, Pointer) for item in step.pointers), "pointers")
    places = {(pointer.parameter, pointer.offset) for pointer in step.pointers}
    require(len(places) == len(step.pointers), "pointers")
    for pointer in step.pointers:
        whole(pointer.parameter, 0, len(step.parameters) - 1, "a pointer")
        parameter = step.parameters[pointer.parameter]
        whole(pointer.offset, 0, len(parameter) - WORD, "a pointer")
        require(pointer.offset % WORD == 0, "a pointer")
        require(not any(parameter[pointer.offset : pointer.offset + WORD]), "a pointer")
        _check_place(pointer.buffer, pointer.delta, 1, memory)


def _check_fill(step: Fill, memory: Memory) -> None:
    whole(step.size, 1, MOST_BYTES, "a fill")
    whole(step.value, 0, 255, "a fill")
    _check_place(step.buffer, step.delta, step.size, memory)


def _check_place(buffer: Any, delta: Any, size: int, memory: Memory) -> None:
    whole(buffer, 0, memory.buffers - 1, "a buffer")
    whole(delta, 0, memory.extent(buffer) - size, "a place in a buffer")
