"""Where a tensor is cut among ranks, and how shapes change that: numbers only, neither torch nor Thunder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

Shape = tuple[int, ...]


class CutError(ValueError):
    """A model cannot be shared by ranks in the way that was asked for. Says which layer, and why."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a tensor is cut: in equal parts along one dimension, of which each rank has its own, in their order.

    Attributes:
        dim: the dimension, from 0 on.
        layer: the name of the layer by which it came about, for people.
        of_rows: whether it is the residual stream that is cut, along its sequence, rather than a layer's features.
        is_gathered: of a weight, whether each rank is to have all that its layer gives.
    """

    dim: int
    layer: str
    of_rows: bool = False
    is_gathered: bool = False

    def moved(self, dim: int) -> Cut:
        """Returns the same cut along another dimension."""
        return replace(self, dim=dim)


def take_part(shape: Sequence[int], dim: int, ranks: int) -> Shape:
    """Returns the shape of one rank's part of a tensor.

    Args:
        shape: of the whole tensor.
        dim: along which it is cut.
        ranks: how many there are; they divide that dimension.
    """
    assert shape[dim] % ranks == 0
    return (*shape[:dim], shape[dim] // ranks, *shape[dim + 1 :])


def follow_reshape(old: Sequence[int], new: Sequence[int], dim: int, ranks: int) -> int | None:
    """Returns the dimension along which a tensor is cut once it has another shape; None if it is along none.

    Of each element the parts go by its place in all dimensions from the cut one on. So the new dimension has to begin
    where that one does, and the ranks have to divide it.

    Args:
        old: the shape, of the whole tensor.
        new: the other shape, of the whole tensor, with as many elements.
        dim: along which it is cut.
        ranks: how many there are.
    """
    before = _sizes_before(old)[dim]
    begins = (place for place, size in enumerate(_sizes_before(new)) if size == before)
    return next((place for place in begins if new[place] >= ranks and new[place] % ranks == 0), None)


def _sizes_before(shape: Sequence[int]) -> Sequence[int]:
    """Returns for each dimension how many elements those in front of it have together."""
    return list(accumulate(shape[:-1], mul, initial=1)) if shape else []


def align_right(dim: int, dims: int, others: int) -> int:
    """Returns which dimension of a tensor is the same as one of another, where both broadcast.

    Args:
        dim: the dimension of the other one.
        dims: how many that one has.
        others: how many the tensor has. What is returned is negative if it lacks this dimension.
    """
    return dim + others - dims
