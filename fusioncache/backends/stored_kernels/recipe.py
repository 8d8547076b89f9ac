"""One run as data: the memory that it needs and what it launches, in order. Whatever it says has been checked."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

VERSION = 1

ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""The dtypes that inputs and outputs may have, by torch's names."""

WORD = 8
"""Bytes of an address."""
CUBIN = ".cubin"

_MOST_BYTES = 2**42
_MOST_ITEMS = 4096
_MOST_DIMENSIONS = 64
_MOST_PARAMETER_BYTES = 32764
_MOST_SHARED = 2**18
_GRID, _BLOCK, _THREADS = (2**31 - 1, 65535, 65535), (1024, 1024, 64), 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a tensor: ``dtype`` by torch's name, ``shape`` and ``strides`` in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        _require(isinstance(self.dtype, str) and self.dtype in ITEM_BYTES, "a dtype")
        for numbers in (self.shape, self.strides):
            _require(type(numbers) is tuple and len(numbers) <= _MOST_DIMENSIONS, "a shape or strides")
            for number in numbers:
                _whole(number, 0, _MOST_BYTES, "a size or a stride")
        _require(len(self.shape) == len(self.strides), "as many strides as sizes")
        _whole(self.extent, 0, _MOST_BYTES, "the extent of a tensor")

    @property
    def extent(self) -> int:
        """Bytes from the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        steps = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return ITEM_BYTES[self.dtype] * (1 + steps)


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that the run is given.

    Attributes:
        layout: of the tensor.
        alignment: of its address, in bytes, as far as the compiler looks at it: see ``Recipe.widest``.
    """

    layout: Layout
    alignment: int

    def __post_init__(self) -> None:
        _require(isinstance(self.layout, Layout), "a layout")
        _require(type(self.alignment) is int and self.alignment in (1, 2, 4, 8, 16, 32), "an alignment")


@dataclass(frozen=True, slots=True)
class Fresh:
    """An output in memory that the run allocates.

    Attributes:
        layout: of the tensor.
        allocation: which of the recipe's allocations it is in.
        offset: of its first element there, in bytes.
    """

    layout: Layout
    allocation: int
    offset: int


@dataclass(frozen=True, slots=True)
class View:
    """An output in the memory of an input.

    Attributes:
        layout: of the tensor.
        input: which input.
        offset: from the input's first element, in elements.
        itself: whether the output is the input itself.
    """

    layout: Layout
    input: int
    offset: int
    itself: bool


@dataclass(frozen=True, slots=True)
class Again:
    """An output that is the same tensor as the one at ``output``, before it."""

    output: int


Output = Fresh | View | Again


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address among the parameters of a kernel.

    Attributes:
        parameter: which parameter it is in.
        offset: in the parameter, in bytes.
        buffer: what it points into: an input, or behind these an allocation.
        delta: from the start of that, in bytes.
    """

    parameter: int
    offset: int
    buffer: int
    delta: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel.

    Attributes:
        cubin: the artifact that it is in.
        function: its name there.
        grid: in blocks.
        block: in threads.
        shared: bytes of dynamic shared memory.
        most_shared: the function's limit for these.
        cooperative: whether all blocks must run at once.
        parameters: the bytes of each, with zeros in place of addresses.
        pointers: these addresses.
    """

    cubin: str
    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    most_shared: int
    cooperative: bool
    parameters: tuple[bytes, ...]
    pointers: tuple[Pointer, ...]


@dataclass(frozen=True, slots=True)
class Fill:
    """Writes ``size`` bytes of this ``value`` into ``buffer``, from ``delta`` on."""

    buffer: int
    delta: int
    size: int
    value: int


Step = Launch | Fill


@dataclass(frozen=True, slots=True)
class Recipe:
    """One run.

    Attributes:
        inputs: at least one.
        allocations: bytes of each piece of memory that outputs and intermediate results need.
        outputs: what the run returns.
        steps: in order.
        widest: bytes of the widest access that a kernel may be compiled for. Larger alignments are all the same.

    Raises:
        ValueError: if anything is out of range.
    """

    inputs: tuple[Input, ...]
    allocations: tuple[int, ...]
    outputs: tuple[Output, ...]
    steps: tuple[Step, ...]
    widest: int

    def __post_init__(self) -> None:
        for items, types in ((self.inputs, Input), (self.outputs, Output), (self.steps, Step)):
            _require(type(items) is tuple and len(items) <= _MOST_ITEMS, "inputs, outputs or steps")
            _require(all(isinstance(item, types) for item in items), "inputs, outputs or steps")
        _require(len(self.inputs) > 0, "an input")
        _require(type(self.widest) is int and self.widest in (16, 32), "a widest access")
        _require(all(input_.alignment <= self.widest for input_ in self.inputs), "an alignment")
        _require(type(self.allocations) is tuple and len(self.allocations) <= _MOST_ITEMS, "allocations")
        for size in self.allocations:
            _whole(size, 0, _MOST_BYTES, "an allocation")
        for position, output in enumerate(self.outputs):
            _check_output(output, position, self)
        for step in self.steps:
            _check_fill(step, self) if isinstance(step, Fill) else _check_launch(step, self)

    @property
    def cubins(self) -> tuple[str, ...]:
        """The artifacts that the steps need."""
        return tuple(dict.fromkeys(step.cubin for step in self.steps if isinstance(step, Launch)))

    def extent(self, buffer: int) -> int:
        """Bytes of an input, or behind these of an allocation."""
        inputs = len(self.inputs)
        return self.inputs[buffer].layout.extent if buffer < inputs else self.allocations[buffer - inputs]


def _check_output(output: Output, position: int, recipe: Recipe) -> None:
    if isinstance(output, Again):
        _whole(output.output, 0, position - 1, "an output")
        _require(not isinstance(recipe.outputs[output.output], Again), "an output")
        return
    _require(isinstance(output.layout, Layout), "a layout")
    _whole(output.offset, 0, _MOST_BYTES, "an offset")
    if isinstance(output, Fresh):
        _whole(output.allocation, 0, len(recipe.allocations) - 1, "an allocation")
        _require(output.offset % ITEM_BYTES[output.layout.dtype] == 0, "an offset")
        _require(output.offset + output.layout.extent <= recipe.allocations[output.allocation], "an extent")
        return
    _whole(output.input, 0, len(recipe.inputs) - 1, "an input")
    source = recipe.inputs[output.input].layout
    _require(type(output.itself) is bool and source.dtype == output.layout.dtype, "a view")
    _require(not output.itself or (output.offset == 0 and source == output.layout), "a view")
    _require(output.offset * ITEM_BYTES[source.dtype] + output.layout.extent <= source.extent, "an extent")


def _check_launch(step: Launch, recipe: Recipe) -> None:
    _require(isinstance(step.cubin, str) and step.cubin.endswith(CUBIN) and len(step.cubin) < 64, "a cubin")
    _require(isinstance(step.function, str) and 0 < len(step.function) < 65536, "a function")
    _require(step.function.isascii() and step.function.isprintable(), "a function")
    for sizes, most in ((step.grid, _GRID), (step.block, _BLOCK)):
        _require(type(sizes) is tuple and len(sizes) == 3, "a grid or a block")
        for size, limit in zip(sizes, most, strict=True):
            _whole(size, 1, limit, "a grid or a block")
    _require(prod(step.block) <= _THREADS, "a block")
    _whole(step.shared, 0, _MOST_SHARED, "shared memory")
    _whole(step.most_shared, step.shared, _MOST_SHARED, "shared memory")
    _require(type(step.cooperative) is bool, "cooperative")
    _require(type(step.parameters) is tuple and all(type(item) is bytes for item in step.parameters), "parameters")
    _require(sum(map(len, step.parameters)) <= _MOST_PARAMETER_BYTES and b"" not in step.parameters, "parameters")
    _require(type(step.pointers) is tuple and all(isinstance(item, Pointer) for item in step.pointers), "pointers")
    places = {(pointer.parameter, pointer.offset) for pointer in step.pointers}
    _require(len(places) == len(step.pointers), "pointers")
    for pointer in step.pointers:
        _whole(pointer.parameter, 0, len(step.parameters) - 1, "a pointer")
        parameter = step.parameters[pointer.parameter]
        _whole(pointer.offset, 0, len(parameter) - WORD, "a pointer")
        _require(pointer.offset % WORD == 0, "a pointer")
        _require(not any(parameter[pointer.offset : pointer.offset + WORD]), "a pointer")
        _check_place(pointer.buffer, pointer.delta, 1, recipe)


def _check_fill(step: Fill, recipe: Recipe) -> None:
    _whole(step.size, 1, _MOST_BYTES, "a fill")
    _whole(step.value, 0, 255, "a fill")
    _check_place(step.buffer, step.delta, step.size, recipe)


def _check_place(buffer: Any, delta: Any, size: int, recipe: Recipe) -> None:
    _whole(buffer, 0, len(recipe.inputs) + len(recipe.allocations) - 1, "a buffer")
    _whole(delta, 0, recipe.extent(buffer) - size, "a place in a buffer")


def _whole(value: Any, least: int, most: int, what: str) -> None:
    _require(type(value) is int and least <= value <= most, what)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"a recipe that is wrong about {what}")
