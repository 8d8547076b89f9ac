"""The captures of a forward program for one kind of call: one, and more where calls overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

from fusioncache.accelerators.graphs.addresses import Addresses
from fusioncache.accelerators.graphs.captured_forward import CapturedForward, ForwardFunction
from fusioncache.accelerators.graphs.memory import PROMISED, GraphMemory
from fusioncache.ir.errors import Declined, Scope

MOST_COPIES = 4
"""How many captures one kind of call may have: for calls that overlap, each before the backward of the one before."""
MOST_TIMES = 24
"""How often one kind of call may be captured in all. What needs more does not stay as it was captured."""


class ForwardCaptures:
    """The captures of a forward program for one kind of call.

    Args:
        function: the program.
        positions: of the tensors among its arguments.
        parameters: of each tensor whether it is a parameter.
        memory: of the device.

    Attributes:
        refused: why it is not captured any more; None if it is.
    """

    def __init__(
        self,
        function: ForwardFunction,
        positions: Sequence[int],
        parameters: Sequence[bool],
        memory: GraphMemory,
    ):
        self.refused: str | None = None
        self._function = function
        self._positions = tuple(positions)
        self._addresses = Addresses(parameters)
        self._memory = memory
        self._captured: list[CapturedForward] = []
        self._times = 0

    @property
    def count(self) -> int:
        """How many captures there are."""
        return len(self._captured)

    def observe(self, arguments: Sequence[Any]) -> None:
        """Takes note of where the tensors of a call are."""
        self._addresses.observe([arguments[place] for place in self._positions])

    def find(self, arguments: Sequence[Any]) -> CapturedForward | None:
        """Returns what may be replayed for a call; None if nothing may, or an argument has moved."""
        free = [captured for captured in self._captured if captured.is_free()]
        if not free:
            return None
        # Those that may be replayed while more is promised are left for calls that come before the next backward.
        captured = free[0] if len(free) == 1 else min(free, key=CapturedForward.count_safe)
        is_fresh = not captured.is_stale or self._times >= MOST_TIMES
        if is_fresh and captured.finds(arguments):
            return captured
        self._memory.remove(captured.name)
        return None

    def capture(self, arguments: Sequence[Any]) -> CapturedForward:
        """Captures the program for a call.

        Raises:
            Declined: if it cannot be, now or at all; ``refused`` tells which.
            Exception: whatever goes wrong in the capture.
        """
        if not self._memory.allows_capture():
            overlaps = any(self._memory.is_promised(each.name) for each in self._captured)
            raise Declined(
                "a call before the backward pass of the previous call" if overlaps else PROMISED, Scope.CAPTURE
            )
        if self._times >= MOST_TIMES:
            reason = "addresses of arguments, or other programs, change too often"
            self.refused = None if self._captured else reason
            raise Declined(reason, Scope.CAPTURE)
        self._make_room()
        self._times += 1
        self.observe(arguments)
        still, moving = self._divide()
        try:
            captured = CapturedForward(self._function, arguments, still, moving, self._memory, ref(self))
        except Declined as refusal:
            refusal.require(Scope.CAPTURE)
            self.refused = refusal.reason
            raise
        self._captured.append(captured)
        self._memory.add(captured.name, captured)
        return captured

    def forget(self, captured: CapturedForward) -> None:
        """Drops one of the captures."""
        self._captured.remove(captured)

    def _make_room(self) -> None:
        if len(self._captured) < MOST_COPIES:
            return
        idle = next((each for each in self._captured if not self._memory.is_promised(each.name)), None)
        if idle is None:
            raise Declined(f"more than {MOST_COPIES} calls before the backward pass of the first", Scope.CAPTURE)
        self._memory.remove(idle.name)

    def _divide(self) -> tuple[list[int], list[int]]:
        lie_still = {self._positions[index] for index in self._addresses.list_still()}
        moving = [place for place in self._positions if place not in lie_still]
        if moving and self._function.writes:
            self.refused = "it writes into arguments whose addresses change"
            raise Declined(self.refused, Scope.CAPTURE)
        return [place for place in self._positions if place in lie_still], moving
