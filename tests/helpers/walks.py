"""Follows values through the package, and counts the functions and files that they pass.

A function is a stop if one of its arguments is the value, or has it in a tuple, a list, a dict or a dataclass, at most
three deep. A return is a step into a file that the value has left before. Only the main thread is followed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from types import FrameType
from typing import Any

import thunder
import torch
from repository import PACKAGE

import fusioncache

WALKS = ("call", "stored program", "loaded program", "length")
"""Arguments of a region's first call; a program, where it is stored, and where it is loaded; a third length."""
_DEPTH, _MOST_ITEMS = 3, 64
_LENGTHS = (67, 97, 193)
"""The last one is followed. It is no other number of the model."""


@dataclass(slots=True)
class Walk:
    """The stops of one value, in order.

    Attributes:
        is_value: whether an object is the value that is followed.
        stops: the file and the name of each function.
    """

    is_value: Callable[[Any], bool]
    stops: list[tuple[str, str]] = field(default_factory=list)

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        """Notes a function that is called with the value."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)):
            return
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        given = (frame.f_locals[name] for name in code.co_varnames[:count] if name in frame.f_locals)
        if any(self._has_value(value, _DEPTH) for value in given):
            self.stops.append((code.co_filename[len(str(PACKAGE)) + 1 :], code.co_qualname))

    def _has_value(self, value: Any, depth: int) -> bool:
        if self.is_value(value):
            return True
        return depth > 0 and any(self._has_value(part, depth - 1) for part in _list_parts(value))

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Follows the value inside the block."""
        sys.setprofile(self.see)
        try:
            yield
        finally:
            sys.setprofile(None)

    def count(self) -> dict[str, int]:
        """Returns the numbers of stops, of different files, and of returns."""
        files = [name for name, _ in self.stops]
        steps = [later for earlier, later in zip(["", *files], files, strict=False) if earlier != later]
        known = len(set(steps))
        return {"stops": len(self.stops), "files": known, "returns": len(steps) - known}


def _list_parts(value: Any) -> Sequence[Any]:
    if isinstance(value, tuple | list):
        return value[:_MOST_ITEMS]
    if type(value) is dict:
        return list(value.values())[:_MOST_ITEMS]
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, each.name, None) for each in fields(value)]
    return ()


def follow_call(compiled: Callable[..., Any], args: Sequence[Any]) -> Walk:
    """Follows the tensors of a region from its first call. The region's arguments are those of the program."""
    known = set(map(id, args))
    walk = Walk(lambda value: id(value) in known)

    def see_first(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_name == "dispatch" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            if event == "return":
                sys.setprofile(None)
                return
            see_first.begun = True  # type: ignore[attr-defined]
        if getattr(see_first, "begun", False):
            walk.see(frame, event, argument)

    sys.setprofile(see_first)
    compiled(*args)
    sys.setprofile(None)
    return walk


def _compute(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * y) + torch.sin(x)


def _compile(folder: str) -> Callable[..., Any]:
    transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache(store=folder), jobs=0)
    executors = [each for each in fusioncache.executors() if each.name not in ("nvfuser", "fusioncache")]
    executors.append(thunder.get_executor("fusioncache"))
    return thunder.jit(_compute, executors=executors, transforms=[transform])  # type: ignore[no-any-return]


def _make_args(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(5, length), torch.ones(5, length)


def follow(what: str, folder: str) -> Walk:
    """Returns the walk of one of ``WALKS``, with the eager backend.

    Args:
        what: is followed.
        folder: an empty one, for what is stored.
    """
    compiled = _compile(folder)
    if what == "call":
        return follow_call(compiled, _make_args(_LENGTHS[0]))
    if what == "length":
        for length in _LENGTHS[:-1]:
            compiled(*_make_args(length))
        walk = Walk(lambda value: type(value) is int and value == _LENGTHS[-1])
    else:
        walk = Walk(lambda value: type(value).__name__ in ("ProgramText", "TraceText"))
        if what == "loaded program":
            compiled(*_make_args(_LENGTHS[0]))
            compiled = _compile(folder)
    args = _make_args(_LENGTHS[-1] if what == "length" else _LENGTHS[0])
    with walk.follow():
        compiled(*args)
    return walk
