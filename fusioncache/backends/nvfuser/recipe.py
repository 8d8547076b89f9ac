"""One run as data: the memory that it needs and what it launches, in order. Whatever it says has been checked."""

from __future__ import annotations

from dataclasses import dataclass

from fusioncache.backends.nvfuser.checks import check_output, check_step
from fusioncache.backends.nvfuser.limits import MOST_BYTES, MOST_ITEMS, require, whole
from fusioncache.backends.nvfuser.parts import Input, Launch, Memory, Output, Step

VERSION = 1


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
            require(type(items) is tuple and len(items) <= MOST_ITEMS, "inputs, outputs or steps")
            require(all(isinstance(item, types) for item in items), "inputs, outputs or steps")
        require(len(self.inputs) > 0, "an input")
        require(type(self.widest) is int and self.widest in (16, 32), "a widest access")
        require(all(input_.alignment <= self.widest for input_ in self.inputs), "an alignment")
        require(type(self.allocations) is tuple and len(self.allocations) <= MOST_ITEMS, "allocations")
        for size in self.allocations:
            whole(size, 0, MOST_BYTES, "an allocation")
        memory = Memory(self.inputs, self.allocations)
        for position, output in enumerate(self.outputs):
            check_output(output, self.outputs[:position], memory)
        for step in self.steps:
            check_step(step, memory)

    @property
    def cubins(self) -> tuple[str, ...]:
        """The artifacts that the steps need."""
        return tuple(dict.fromkeys(step.cubin for step in self.steps if isinstance(step, Launch)))
