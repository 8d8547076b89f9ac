"""The programs of one transform that are captured, all in one pool of memory for each device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusioncache.accelerators.graphs.backward import BackwardProgram
from fusioncache.accelerators.graphs.captured_backward import BackwardFunction
from fusioncache.accelerators.graphs.captured_forward import ForwardFunction
from fusioncache.accelerators.graphs.failures import Failures
from fusioncache.accelerators.graphs.forward import ForwardProgram
from fusioncache.accelerators.graphs.memory import GraphMemory
from fusioncache.accelerators.graphs.recorder import Recorder, Tally


@dataclass(frozen=True, slots=True)
class Program:
    """Forward and backward as Thunder compiled them.

    Attributes:
        forward: its computation.
        backward: None if it has none.
        refused: why forward, and why backward, is not captured; None for what can be.
    """

    forward: ForwardFunction
    backward: BackwardFunction | None
    refused: tuple[str | None, str | None] = (None, None)


class CudaGraphs:
    """Captures the programs of one transform, all in one pool of memory for each device.

    Args:
        tally: counts.
        find_recorder: returns what captures on a device, or raises ``Declined``.

    Attributes:
        find_recorder: the same. It is asked once for each device.
    """

    def __init__(self, tally: Tally, find_recorder: Callable[[Any], Recorder]):
        self._failures = Failures(tally)
        self.find_recorder = find_recorder
        self._memories: dict[Any, GraphMemory] = {}

    def count_refusal(self, reason: str) -> None:
        """Counts a program that is left as it is."""
        self._failures.refuse(reason)

    def capture(self, program: Program) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
        """Returns forward and backward, which are captured when they are called again."""
        why_forward, why_backward = program.refused
        if why_forward is not None:
            self._failures.refuse(why_forward)
            return program.forward.call, program.backward
        forward = ForwardProgram(program.forward, self._failures, self.memory_of)
        backward = program.backward
        if backward is not None:
            backward = BackwardProgram(backward, self._failures, self.memory_of, why_backward)
        return forward, backward

    def memory_of(self, device: Any) -> GraphMemory:
        """Returns the memory of a device.

        Raises:
            Declined: if nothing can be captured there.
        """
        found = self._memories.get(device)
        if found is None:
            found = self._memories[device] = GraphMemory(self.find_recorder(device))
        return found
