"""What a recipe is made of: inputs, outputs, and steps."""

from __future__ import annotations

from dataclasses import dataclass

from fusioncache.backends.nvfuser.limits import MOST_BYTES, MOST_DIMENSIONS, require, whole

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


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a tensor: ``dtype`` by torch's name, ``shape`` and ``strides`` in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        require(isinstance(self.dtype, str) and self.dtype in ITEM_BYTES, "a dtype")
        for numbers in (self.shape, self.strides):
            require(type(numbers) is tuple and len(numbers) <= MOST_DIMENSIONS, "a shape or strides")
            for number in numbers:
                whole(number, 0, MOST_BYTES, "a size or a stride")
        require(len(self.shape) == len(self.strides), "as many strides as sizes")
        whole(self.extent, 0, MOST_BYTES, "the extent of a tensor")

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
        require(isinstance(self.layout, Layout), "a layout")
        require(type(self.alignment) is int and self.alignment in (1, 2, 4, 8, 16, 32), "an alignment")


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
class Memory:
    """What a run's kernels may reach.

    Attributes:
        inputs: of the run.
        allocations: bytes of each piece of memory behind these.
    """

    inputs: tuple[Input, ...]
    allocations: tuple[int, ...]

    @property
    def buffers(self) -> int:
        """How many there are."""
        return len(self.inputs) + len(self.allocations)

    def extent(self, buffer: int) -> int:
        """Bytes of an input, or behind these of an allocation."""
        inputs = len(self.inputs)
        return self.inputs[buffer].layout.extent if buffer < inputs else self.allocations[buffer - inputs]
