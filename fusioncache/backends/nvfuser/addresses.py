"""Which numbers among a kernel's parameters are addresses, and into what.

A run is captured twice, with everything at other addresses the second time. What is an address differs then, and lies
in the same place of the same memory; all else is equal. So no number is taken for an address by chance, nor the other
way round.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fusioncache.backends.api import NotPersistable
from fusioncache.backends.nvfuser.nodes import Filling, Kernel, Node, short
from fusioncache.backends.nvfuser.parts import CUBIN, WORD, Fill, Launch, Pointer, Step

_LEAST_ADDRESS = 2**16


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of memory: its address and its bytes."""

    start: int
    size: int


class Memory:
    """The memory of one captured run.

    Args:
        pieces: of memory, the inputs first. They may be empty, and must not overlap.

    Raises:
        NotPersistable: if they overlap.
    """

    def __init__(self, pieces: Sequence[Piece]):
        self.pieces = tuple(pieces)
        self._order = sorted((piece.start, number) for number, piece in enumerate(self.pieces) if piece.size)
        end = 0
        for start, number in self._order:
            if start < end:
                raise NotPersistable("memory that overlaps")
            end = start + self.pieces[number].size

    def find(self, address: int) -> tuple[int, int] | None:
        """The piece that an address is in, and where in it."""
        place = bisect_right(self._order, (address, len(self.pieces))) - 1
        if place < 0:
            return None
        start, number = self._order[place]
        return (number, address - start) if address < start + self.pieces[number].size else None


def regions(allocated: Iterable[Piece]) -> tuple[Piece, ...]:
    """Pieces that do not overlap, in the order in which they were first allocated.

    What is freed is allocated again while a run goes on, so that one address may mean several things. Which one does
    not matter to who gives a run the same pieces, each as large as all that was ever in it.
    """
    found: list[tuple[Piece, int]] = []
    for first, piece in enumerate(allocated):
        start, end = piece.start, piece.start + piece.size
        apart = []
        for other, number in found:
            if other.start < end and start < other.start + other.size:
                start, end = min(start, other.start), max(end, other.start + other.size)
                first = min(first, number)
            else:
                apart.append((other, number))
        found = [*apart, (Piece(start, end - start), first)] if piece.size else found
    return tuple(piece for piece, _ in sorted(found, key=lambda item: item[1]))


def resolved(
    first: Sequence[Node],
    memory: Memory,
    second: Sequence[Node],
    other: Memory,
    is_pointer: Callable[[int], bool],
) -> tuple[Step, ...]:
    """The steps of a run that was captured twice. Launches name no cubin yet.

    Args:
        first: what was captured first.
        memory: of that run.
        second: what was captured with everything at other addresses.
        other: the memory of that run, piece by piece the same.
        is_pointer: whether a number is an address of memory that the GPU reads.

    Raises:
        NotPersistable: if anything cannot be told for certain.
    """
    if len(first) != len(second) or [p.size for p in memory.pieces] != [p.size for p in other.pieces]:
        raise NotPersistable("not the same twice")
    steps: list[Step] = []
    for one, two in zip(first, second, strict=True):
        if isinstance(one, Kernel) and isinstance(two, Kernel):
            steps.append(_launch(one, memory, two, other, is_pointer))
        elif isinstance(one, Filling) and isinstance(two, Filling):
            steps.append(_fill(one, memory, two, other))
        else:
            raise NotPersistable("not the same twice")
    return tuple(steps)


def _fill(one: Filling, memory: Memory, two: Filling, other: Memory) -> Fill:
    place = memory.find(one.address)
    if place is None or place != other.find(two.address) or (one.size, one.value) != (two.size, two.value):
        raise NotPersistable("a fill of unknown memory")
    buffer, delta = place
    if delta + one.size > memory.pieces[buffer].size:
        raise NotPersistable("a fill beyond its memory")
    return Fill(buffer, delta, one.size, one.value)


def _launch(one: Kernel, memory: Memory, two: Kernel, other: Memory, is_pointer: Callable[[int], bool]) -> Launch:
    if _how(one) != _how(two) or list(map(len, one.parameters)) != list(map(len, two.parameters)):
        raise NotPersistable("not the same twice")
    parameters, pointers = [], []
    for number, (left, right) in enumerate(zip(one.parameters, two.parameters, strict=True)):
        content = bytearray(left)
        for offset in range(0, len(left), WORD):
            word, again = left[offset : offset + WORD], right[offset : offset + WORD]
            place = _place(word, memory, again, other, is_pointer, f"parameter {number} of {short(one.name)}")
            if place is not None:
                content[offset : offset + WORD] = bytes(WORD)
                pointers.append(Pointer(number, offset, *place))
        parameters.append(bytes(content))
    grid, block = one.grid, one.block
    limits = one.shared, one.most_shared, one.cooperative
    return Launch(CUBIN, one.name, grid, block, *limits, tuple(parameters), tuple(pointers))


def _how(kernel: Kernel) -> tuple:
    return kernel.name, kernel.grid, kernel.block, kernel.shared, kernel.most_shared, kernel.cooperative


def _place(
    word: bytes, memory: Memory, again: bytes, other: Memory, is_pointer: Callable[[int], bool], what: str
) -> tuple[int, int] | None:
    """Where a word of a parameter points to; None if it is no address."""
    number, number_again = int.from_bytes(word, "little"), int.from_bytes(again, "little")
    place = memory.find(number) if len(word) == WORD else None
    if word == again:
        if place is not None or (number >= _LEAST_ADDRESS and len(word) == WORD and is_pointer(number)):
            raise NotPersistable(f"memory that outlives a run, or a number that looks like an address: {what}")
        return None
    if place is None or place != other.find(number_again):
        raise NotPersistable(f"a number that is not the same twice: {what}")
    return place
