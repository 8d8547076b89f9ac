"""Which arguments lie still, so that a captured program may read them where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

MOST_MOVES = 1
"""How often a parameter may move and still counts as lying still: a model is moved or loaded once, and then stays."""


class Addresses:
    """Where the arguments of one kind of call were found.

    Whether an argument lies still is a guess: what is captured asks in each call whether all those are where they were.
    A parameter does. So does what is the same object in each call, as buffers are: an address says little, as it is
    soon that of the next batch.

    Args:
        parameters: of each argument whether it is a parameter of the model.
    """

    def __init__(self, parameters: Sequence[bool]):
        self._parameters = tuple(parameters)
        self._moves = [0] * len(parameters)
        self._last: list[tuple[ref[Any], int]] | None = None

    def observe(self, tensors: Sequence[Any]) -> None:
        """Takes note of the arguments of a call."""
        if self._last is not None:
            pairs = zip(self._last, tensors, self._parameters, strict=True)
            for position, ((last, address), tensor, owned) in enumerate(pairs):
                is_another = not owned and last() is not tensor
                self._moves[position] += is_another or address != tensor.data_ptr()
        self._last = [(ref(tensor), tensor.data_ptr()) for tensor in tensors]

    def list_still(self) -> tuple[int, ...]:
        """Returns the positions of the arguments that lie still."""
        pairs = zip(self._moves, self._parameters, strict=True)
        return tuple(place for place, (moves, owned) in enumerate(pairs) if moves <= (MOST_MOVES if owned else 0))
