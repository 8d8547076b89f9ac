"""The arguments of a call that have sizes: tensors have shapes, and an integer may be a length itself.

Dynamo hands a length over as an integer beside the tensors that have it. So an integer is taken for a size, too, and
what a program does with one is watched as with any other. 0 and 1 are no lengths: too much is otherwise there.

A batch is often a dictionary of tensors, and what a decoder remembers a list of pairs. The tensors in such containers
have sizes as well, unless something is beside them that may be written as a tensor's sizes are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

type Place = int | str | tuple[int | str, ...]
"""Where an argument is: its position, or its name; of what is in one, that and the keys that lead there."""

type ArgumentSizes = Mapping[Place, tuple[int, ...]]
"""Of each argument that has sizes, by its place: the shape of a tensor, or an integer alone."""

_DEEPEST = 8
"""How many containers may be in one another."""


def find_tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[Place, Any]:
    """Returns the arguments of a call that are tensors, and tensors in lists, tuples and dictionaries among them.

    None is of a subclass. What is in containers is left out where a tensor is there twice.
    """
    import torch

    places = _list_places(args, kwargs)
    tensors: dict[Place, Any] = {place: value for place, value in places if type(value) is torch.Tensor}
    inside = chain.from_iterable(_find_inside(place, value) for place, value in places)
    found = {**tensors, **dict(inside)}
    return found if len(set(map(id, found.values()))) == len(found) else tensors


def find_integers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[Place, int]:
    """Returns the arguments of a call that are integers above 1 by themselves, and of no subclass."""
    return {place: value for place, value in _list_places(args, kwargs) if type(value) is int and value > 1}


def find_sizes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> ArgumentSizes:
    """Returns the sizes of the arguments of a call."""
    shapes = {place: tuple(each.shape) for place, each in find_tensors(args, kwargs).items()}
    return {**shapes, **{place: (each,) for place, each in find_integers(args, kwargs).items()}}


def explain_fixed(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Returns which argument has sizes that are no lengths, and why; None if none has."""
    for place, value in _list_places(args, kwargs):
        reason = _explain(place, value)
        if reason is not None:
            return f"{name_argument(place)} {reason}: its sizes are no lengths"
    return None


def _explain(place: int | str, value: Any) -> str | None:
    """Returns why the sizes of an argument are no lengths; None if they are, or there are none."""
    import torch

    if type(value) is torch.Tensor:
        return None
    if issubclass(type(value), torch.Tensor):
        return f"is of type {type(value).__name__}"
    if type(value) not in (dict, list, tuple):
        return None
    try:
        inside = [each for _, each in _open((place,), value)]
    except ValueError as reason:
        return str(reason)
    return "holds a tensor twice" if len(set(map(id, inside))) < len(inside) else None


def name_argument(place: Place) -> str:
    """Returns how people are told of an argument."""
    if isinstance(place, tuple):
        first, *keys = place
        return name_argument(first) + "".join(f"[{key!r}]" for key in keys)
    return f"args[{place}]" if isinstance(place, int) else place


def _list_places(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[tuple[int | str, Any]]:
    return (*enumerate(args), *kwargs.items())


def _find_inside(place: int | str, value: Any) -> Iterable[tuple[Place, Any]]:
    """Returns the tensors in a container; none if anything beside them might be taken for their sizes."""
    if type(value) not in (dict, list, tuple):
        return ()
    try:
        return list(_open((place,), value))
    except ValueError:
        return ()


def _open(way: tuple[int | str, ...], value: Any) -> Iterator[tuple[Place, Any]]:
    """Yields the tensors in a container with their places.

    Raises:
        ValueError: if anything beside them might be taken for their sizes.
    """
    import torch

    if type(value) is torch.Tensor:
        yield way, value
    elif type(value) in (dict, list, tuple) and len(way) <= _DEEPEST:
        # As it is at this moment, whatever another thread does to it.
        for key, each in tuple(value.items() if type(value) is dict else enumerate(value)):
            if not (_is_plain_text(key) or (type(key) is int and key >= 0)):
                raise ValueError("has a key that is no plain text")
            yield from _open((*way, key), each)
    elif not (_is_plain_text(value) or value is None or type(value) in (bool, int, float)):
        name = type(value).__name__
        raise ValueError("holds a text with a parenthesis" if name == "str" else f"holds an object of type {name}")


def _is_plain_text(value: Any) -> bool:
    """Tells whether something is a text with nothing in it that could be taken for the sizes of a tensor."""
    return type(value) is str and "(" not in value
