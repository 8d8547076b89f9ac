"""Memory that is zero when a launch is given it, filled once for many launches.

Blocks of threads that wait for each other count in memory which has to be zero at first. nvFuser fills it before each
launch, and to launch a fill takes the host as long as to launch a kernel. Here one fill zeroes a block of memory, of
which each launch is given another piece. Once all pieces were given away, the block is filled again. That comes behind
all launches that have a piece of it, since it goes to the same stream.

A graph that is captured has a fill of its own for each launch: its replays find the same piece each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from fusioncache.backends.nvfuser.outputs import allocate_bytes
from fusioncache.backends.nvfuser.recipe import Fill, Fresh, Recipe

_ALIGNED = 512
"""Bytes that pieces are apart: torch's own allocations begin at a multiple."""
MOST_BYTES = 4096
"""Bytes that a launch is given in this way at most: to fill more takes a GPU longer than the host to launch that."""
BLOCK = 2**16
"""Bytes that are filled at once: those of 128 launches, if each has 512."""

# Torch without CUDA does not have this one.
is_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one launch of a recipe is given.

    Attributes:
        places: where each allocation that is in it begins, by its index among the recipe's.
        size: its bytes.
    """

    places: Mapping[int, int]
    size: int


def find_zeroed(recipe: Recipe) -> Piece:
    """Finds the allocations that lie in a piece, and whose fills a launch does without.

    The whole of each is filled with zeros once, before anything is launched that is given it, and it is in no output.
    """
    outputs = {output.allocation for output in recipe.outputs if isinstance(output, Fresh)}
    places: dict[int, int] = {}
    end = 0
    for index, size in enumerate(recipe.allocations):
        reached = end + size + -size % _ALIGNED
        if index not in outputs and reached <= MOST_BYTES and _is_zeroed_first(recipe, index):
            places[index], end = end, reached
    return Piece(MappingProxyType(places), end)


def _is_zeroed_first(recipe: Recipe, allocation: int) -> bool:
    buffer = len(recipe.inputs) + allocation
    users = [step for step in recipe.steps if _uses(step, buffer)]
    fills = [step for step in users if isinstance(step, Fill)]
    return fills == users[:1] == [Fill(buffer, 0, recipe.allocations[allocation], 0)]


def _uses(step: Any, buffer: int) -> bool:
    if isinstance(step, Fill):
        return step.buffer == buffer
    return any(pointer.buffer == buffer for pointer in step.pointers)


class ZeroedMemory:
    """Gives each launch of one recipe, by one thread on one device, its piece of a block, which stays.

    Args:
        size: bytes of a piece, a multiple of 512.
        fill: fills memory: takes an address, a value, bytes and a stream; returns a tuple whose first item is 0 if
            nothing failed.
    """

    __slots__ = ("_block", "_end", "_fill", "_next", "_size", "_stream")

    def __init__(self, size: int, fill: Callable[..., tuple[int]]):
        self._size = size
        self._fill = fill
        self._block: Any = None
        self._stream: int | None = None
        self._next = self._end = 0

    def take(self, stream: int) -> int:
        """Returns the address of a piece for a launch on this stream, the current one of the current device.

        Returns:
            0 if there is none now: because a graph is captured, or because the fill failed.
        """
        if is_capturing():
            return 0
        address = self._next
        if (address == self._end or stream != self._stream) and not (address := self._renew(stream)):
            return 0
        self._next = address + self._size
        return address

    def _renew(self, stream: int) -> int:
        """Fills the block, or on another stream a new one; returns its address, and 0 if that failed."""
        self._next = self._end = 0
        size = BLOCK // self._size * self._size
        if self._block is None or stream != self._stream:
            # The old one is used on the old stream until its launches are done, and then given to that one only.
            self._block, self._stream = allocate_bytes(size), stream
        address: int = self._block.data_ptr()
        try:
            code = self._fill(address, 0, size, stream)[0]
        except (KeyError, ValueError):  # the bindings know no such result
            return 0
        if code:
            return 0
        self._end = address + size
        return address
