"""Limits of the number of functions and files that a value passes through, for each walk.

A function is a stop if one of its arguments is the value, or contains it in a tuple, list, dict or dataclass, at most
three deep. A return is a step into a file that the value has left before. Only the main thread is followed.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import thunder
import torch
from repository import PACKAGE

import fusioncache

LIMITS = {
    "call": {"stops": 16, "files": 8, "returns": 4},  # arguments of a region's first call
    "stored program": {"files": 7},
    "loaded program": {"files": 5},
    "length": {"files": 21},  # a third length
}
LENGTHS = (67, 97, 193)
"""The last one is followed. No other number of the model equals it."""


def list_parts(value: Any) -> Sequence[Any]:
    if isinstance(value, tuple | list):
        return value[:64]
    if type(value) is dict:
        return list(value.values())[:64]
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, each.name, None) for each in fields(value)]
    return ()


def follow(is_value: Callable[[Any], bool], work: Callable[[], object]) -> list[tuple[str, str]]:
    """Returns the stops of a value in order: the file and the name of each function."""
    stops = []

    def has_value(value: Any, depth: int) -> bool:
        return is_value(value) or (depth > 0 and any(has_value(part, depth - 1) for part in list_parts(value)))

    def see(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
            names = [name for name in code.co_varnames[:count] if name in frame.f_locals]
            if any(has_value(frame.f_locals[name], 3) for name in names):
                stops.append((code.co_filename[len(str(PACKAGE)) + 1 :], code.co_qualname))

    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(None)
    return stops


def count(stops: Sequence[tuple[str, str]]) -> dict[str, int]:
    files = [name for name, _ in stops]
    steps = [later for earlier, later in zip(["", *files], files, strict=False) if earlier != later]
    return {"stops": len(stops), "files": len(set(steps)), "returns": len(steps) - len(set(steps))}


def compile_model(folder: str) -> Callable[..., Any]:
    transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache(store=folder), jobs=0)
    executors = [each for each in fusioncache.executors() if each.name not in ("nvfuser", "fusioncache")]
    executors.append(thunder.get_executor("fusioncache"))
    return thunder.jit(lambda x, y: torch.tanh(x * y) + torch.sin(x), executors=executors, transforms=[transform])


@pytest.mark.parametrize("walk", LIMITS)
def test_values_pass_few_files(walk, tmp_path):
    compiled = compile_model(str(tmp_path))
    args = [torch.ones(5, LENGTHS[-1] if walk == "length" else LENGTHS[0]) for _ in range(2)]
    if walk == "call":
        stops = follow(lambda value: any(value is each for each in args), lambda: compiled(*args))
        first = stops.index(("cache/call.py", "_dispatch_by_contiguity.<locals>.dispatch"))
        stops = stops[first:]
        assert ("backends/eager.py", "Eager.compile") in stops and ("cache/cache.py", "Cache.template") not in stops
    elif walk == "length":
        for length in LENGTHS[:-1]:
            compiled(torch.ones(5, length), torch.ones(5, length))
        stops = follow(lambda value: type(value) is int and value == LENGTHS[-1], lambda: compiled(*args))
    else:
        if walk == "loaded program":
            compiled(*args)
            compiled = compile_model(str(tmp_path))
        stops = follow(lambda value: type(value).__name__ in ("ProgramText", "TraceText"), lambda: compiled(*args))
    counts = count(stops)
    assert all(0 < counts[what] <= most for what, most in LIMITS[walk].items()), counts
