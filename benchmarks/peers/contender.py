"""What the worker asks of every peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

Call = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of a first step that were no execution."""

    trace: float = 0.0
    compile: float = 0.0


@dataclass(frozen=True, slots=True)
class Counts:
    """What was compiled so far; None for what a peer has none of.

    Attributes:
        kernels: definitions that nvFuser compiled, or kernels that TorchInductor generated.
        units: what was given to the compiler at once: regions of Thunder's, each once however often it is shared;
            graphs of TorchInductor's, forward and backward.
        regions: fused calls in what Thunder runs.
        graph_breaks: of Dynamo.
        loads: executables that were found on disk in place of being compiled.
    """

    kernels: int | None = None
    units: int | None = None
    regions: int | None = None
    graph_breaks: int | None = None
    loads: int | None = None


class Contender:
    """A peer in the process that measures it. This one is torch as it is, which compiles nothing."""

    def warm_up(self, function: Call) -> Call:
        """Compiles a function that has nothing to do with the model, in the same way. It is called first."""
        return function

    def compile(self, model: nn.Module) -> Call:
        """Returns what is called in place of the model. Counts and seconds are those from here on."""
        return model

    def spent(self) -> Spent:
        """Returns where the time of the first step went."""
        return Spent()

    def counts(self) -> Counts:
        """Returns what was compiled."""
        return Counts()

    def notes(self) -> Sequence[str]:
        """Returns what a reader of the numbers must know."""
        return ()
