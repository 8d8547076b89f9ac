"""One run of nvFuser's kernels as data: its memory, and its launches in order.

The numbers of a recipe are checked when it is created, so that a launch from stored bytes cannot reach beyond its
memory. ``decode`` checks types, and refuses anything that is not a recipe of this version.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fusioncache.ir import codec
from fusioncache.ir.template import count_elements

VERSION = 3
"""The version of the format. Recipes of another version are refused."""

ITEM_BYTES = {
    **dict.fromkeys(("bool", "uint8", "int8"), 1),
    **dict.fromkeys(("int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "float32"), 4),
    **dict.fromkeys(("int64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""The bytes of an element of each dtype that inputs and outputs may have, by torch's names."""

WORD = 8
"""Bytes of an address."""
RECIPE = "recipe"
"""The name of the artifact that is a recipe."""
SOURCE = "kernels.cu"
"""The name of the artifact with the kernels' CUDA, for people: launching does not read it."""
CUBIN = ".cubin"
"""The suffix of the name of every artifact that is a cubin."""

_MOST_BYTES = 2**42
_MOST_ITEMS = 4096
_MOST_DIMENSIONS = 64
_MOST_PARAMETER_BYTES = 32764
_MOST_SHARED = 2**18
_MOST_BLOCKS, _MOST_THREADS, _MOST_THREADS_IN_ALL = (2**31 - 1, 65535, 65535), (1024, 1024, 64), 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a tensor: ``dtype`` by torch's name, ``shape`` and ``strides`` in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        _require(self.dtype in ITEM_BYTES, "a dtype")
        _require(len(self.shape) == len(self.strides) <= _MOST_DIMENSIONS, "a shape or strides")
        for number in (*self.shape, *self.strides):
            _require_integer(number, 0, _MOST_BYTES, "a size or a stride")
        _require_integer(self.extent, 0, _MOST_BYTES, "the extent of a tensor")

    @property
    def extent(self) -> int:
        """The number of bytes from the first element to the end of the last."""
        return ITEM_BYTES[self.dtype] * count_elements(self.shape, self.strides)


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor argument of the run.

    Attributes:
        layout: the layout of the tensor.
        alignment: the alignment of its address in bytes, as far as the compiler considers it: see ``Recipe.widest``.
    """

    layout: Layout
    alignment: int

    def __post_init__(self) -> None:
        _require(self.alignment in (1, 2, 4, 8, 16, 32), "an alignment")


@dataclass(frozen=True, slots=True)
class Fresh:
    """An output in memory that the run allocates.

    Attributes:
        layout: the layout of the tensor.
        allocation: the index of the recipe's allocation that it is in.
        offset: where its first element is in the allocation, in bytes.
    """

    layout: Layout
    allocation: int
    offset: int


@dataclass(frozen=True, slots=True)
class View:
    """An output in the memory of an input.

    Attributes:
        layout: the layout of the tensor.
        input: the index of the input.
        offset: how far the output is from the input's first element, in elements.
        itself: whether the output is the input itself.
    """

    layout: Layout
    input: int
    offset: int
    itself: bool


@dataclass(frozen=True, slots=True)
class Duplicate:
    """An output that is the same tensor as an earlier one, whose index is ``output``."""

    output: int


Output = Fresh | View | Duplicate


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address among the parameters of a kernel.

    Attributes:
        parameter: the index of the parameter that it is in.
        offset: where it is in the parameter, in bytes.
        buffer: the index of the buffer that it points into: inputs come first, then allocations.
        delta: how far it points from the start of that buffer, in bytes.
    """

    parameter: int
    offset: int
    buffer: int
    delta: int


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch of a kernel.

    Attributes:
        cubin: the name of the artifact that the kernel is in.
        function: the kernel's name there.
        grid: its size in blocks.
        block: the size of a block in threads.
        shared: bytes of dynamic shared memory.
        most_shared: the function's limit for these.
        cooperative: whether all blocks must run at once.
        parameters: the bytes of each parameter, with zeros in place of addresses.
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
    """A step that writes ``size`` bytes of this ``value`` into ``buffer``, from ``delta`` on."""

    buffer: int
    delta: int
    size: int
    value: int


Step = Launch | Fill


@dataclass(frozen=True, slots=True)
class Recipe:
    """One run.

    Attributes:
        inputs: empty if all tensors are created on a GPU that the region names.
        allocations: the bytes of each piece of memory that outputs and intermediate results need.
        outputs: what the run returns.
        steps: what it launches, in order.
        widest: bytes of the widest access that a kernel may be compiled for. Larger alignments make no difference.

    Raises:
        ValueError: if anything is out of range.
    """

    inputs: tuple[Input, ...]
    allocations: tuple[int, ...]
    outputs: tuple[Output, ...]
    steps: tuple[Step, ...]
    widest: int

    def __post_init__(self) -> None:
        for items in (self.inputs, self.allocations, self.outputs, self.steps):
            _require(len(items) <= _MOST_ITEMS, "the number of inputs, allocations, outputs or steps")
        _require(self.widest in (16, 32), "a widest access")
        _require(all(input_.alignment <= self.widest for input_ in self.inputs), "an alignment")
        for size in self.allocations:
            _require_integer(size, 0, _MOST_BYTES, "an allocation")
        for index, output in enumerate(self.outputs):
            _check_output(output, self.outputs[:index], self)
        extents = self.extents
        for step in self.steps:
            _check_fill(step, extents) if isinstance(step, Fill) else _check_launch(step, extents)

    @property
    def extents(self) -> tuple[int, ...]:
        """The bytes of each buffer that kernels may reach: of each input, and behind these of each allocation."""
        return (*(input_.layout.extent for input_ in self.inputs), *self.allocations)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The steps that launch a kernel, in order."""
        return tuple(step for step in self.steps if isinstance(step, Launch))

    @property
    def cubins(self) -> tuple[str, ...]:
        """The names of the artifacts that the steps need."""
        return tuple(dict.fromkeys(step.cubin for step in self.launches))


def _check_output(output: Output, earlier: Sequence[Output], recipe: Recipe) -> None:
    """Refuses an output that reaches beyond its memory, or duplicates one that is not an earlier one."""
    if isinstance(output, Duplicate):
        _require_integer(output.output, 0, len(earlier) - 1, "an output")
        _require(not isinstance(earlier[output.output], Duplicate), "an output")
        return
    _require_integer(output.offset, 0, _MOST_BYTES, "an offset")
    if isinstance(output, Fresh):
        _require_integer(output.allocation, 0, len(recipe.allocations) - 1, "an allocation")
        _require(output.offset % ITEM_BYTES[output.layout.dtype] == 0, "an offset")
        _require(output.offset + output.layout.extent <= recipe.allocations[output.allocation], "an extent")
        return
    _require_integer(output.input, 0, len(recipe.inputs) - 1, "an input")
    source = recipe.inputs[output.input].layout
    _require(source.dtype == output.layout.dtype, "a view")
    _require(not output.itself or (output.offset == 0 and source == output.layout), "a view")
    _require(output.offset * ITEM_BYTES[source.dtype] + output.layout.extent <= source.extent, "an extent")


def _check_launch(step: Launch, extents: Sequence[int]) -> None:
    """Refuses a launch that reaches beyond its memory or the limits of a GPU."""
    _require(step.cubin.endswith(CUBIN) and len(step.cubin) < 64, "a cubin")
    _require(0 < len(step.function) < 65536, "a function")
    _require(step.function.isascii() and step.function.isprintable(), "a function")
    for size, limit in zip((*step.grid, *step.block), (*_MOST_BLOCKS, *_MOST_THREADS), strict=True):
        _require_integer(size, 1, limit, "a grid or a block")
    _require(prod(step.block) <= _MOST_THREADS_IN_ALL, "a block")
    _require_integer(step.shared, 0, _MOST_SHARED, "shared memory")
    _require_integer(step.most_shared, step.shared, _MOST_SHARED, "shared memory")
    _require(sum(map(len, step.parameters)) <= _MOST_PARAMETER_BYTES and b"" not in step.parameters, "parameters")
    words = {(pointer.parameter, pointer.offset) for pointer in step.pointers}
    _require(len(words) == len(step.pointers), "pointers")
    for pointer in step.pointers:
        _check_pointer(pointer, step.parameters, extents)


def _check_pointer(pointer: Pointer, parameters: Sequence[bytes], extents: Sequence[int]) -> None:
    _require_integer(pointer.parameter, 0, len(parameters) - 1, "a pointer")
    parameter = parameters[pointer.parameter]
    _require_integer(pointer.offset, 0, len(parameter) - WORD, "a pointer")
    _require(pointer.offset % WORD == 0, "a pointer")
    _require(not any(parameter[pointer.offset : pointer.offset + WORD]), "a pointer")
    _check_range(pointer.buffer, pointer.delta, 1, extents)


def _check_fill(step: Fill, extents: Sequence[int]) -> None:
    _require_integer(step.size, 1, _MOST_BYTES, "a fill")
    _require_integer(step.value, 0, 255, "a fill")
    _check_range(step.buffer, step.delta, step.size, extents)


def _check_range(buffer: int, delta: int, size: int, extents: Sequence[int]) -> None:
    _require_integer(buffer, 0, len(extents) - 1, "a buffer")
    _require_integer(delta, 0, extents[buffer] - size, "a place in a buffer")


def _require_integer(value: int, least: int, most: int, what: str) -> None:
    """Refuses a value that is not an integer in this range. True and False are not integers here."""
    _require(type(value) is int and least <= value <= most, what)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"a recipe that is wrong about {what}")


def encode(recipe: Recipe) -> bytes:
    """Returns a recipe as bytes. Equal recipes have equal bytes."""
    return codec.encode(recipe, version=VERSION)


def decode(data: bytes) -> Recipe:
    """Returns the recipe that these bytes hold.

    Raises:
        ValueError: if they do not hold a recipe of this version, or anything in it is out of range.
    """
    return codec.decode(Recipe, data, "recipe", version=VERSION)


_MAGIC = b"\x7fELF\x02\x01"
"""The start of an ELF file of 64 bits, lowest byte first."""
_HEADER = struct.Struct("<40xQ4xHHHHHH")
_SECTION = struct.Struct("<4xI16xQQ24x")
_PROGRAM = struct.Struct("<8xQ16xQ16x")
_NO_BITS = 8
_MACHINE = (190).to_bytes(2, "little")


def check_cubin(image: bytes) -> None:
    """Checks that all parts of a cubin lie inside it.

    The driver does not receive the length of a cubin, and would read beyond its end.

    Raises:
        ValueError: if a part does not, or this is not a cubin.
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
