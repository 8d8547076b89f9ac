"""The arguments of a call that have sizes: tensors have shapes, and an integer may be a length itself.

Dynamo hands a length over as an integer beside the tensors that have it. So an integer is taken for a size, too, and
what a program does with one is watched as with any other. 0 and 1 are no lengths: too much is otherwise there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

type Place = int | str
"""Where an argument is: its position, or its name."""

type ArgumentSizes = Mapping[Place, tuple[int, ...]]
"""Of each argument that has sizes, by its place: the shape of a tensor, or an integer alone."""


def find_tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[Place, Any]:
    """Returns the arguments of a call that are tensors by themselves, and of no subclass."""
    import torch

    return {place: value for place, value in _list_places(args, kwargs) if type(value) is torch.Tensor}


def find_integers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[Place, int]:
    """Returns the arguments of a call that are integers above 1 by themselves, and of no subclass."""
    return {place: value for place, value in _list_places(args, kwargs) if type(value) is int and value > 1}


def find_sizes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> ArgumentSizes:
    """Returns the sizes of the arguments of a call."""
    shapes = {place: tuple(each.shape) for place, each in find_tensors(args, kwargs).items()}
    return {**shapes, **{place: (each,) for place, each in find_integers(args, kwargs).items()}}


def name_argument(place: Place) -> str:
    """Returns how people are told of an argument."""
    return f"args[{place}]" if isinstance(place, int) else place


def _list_places(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterable[tuple[Place, Any]]:
    return (*enumerate(args), *kwargs.items())
