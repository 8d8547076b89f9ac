"""Follows three values through the package, and prints the functions and files that they pass.

- ``call``: the arguments of a region's first call, from the call in the trace to its results.
- ``program``: a program, in the process that stores it and in the one that loads it.
- ``length``: a sequence length that is new, once two others are known.

A function is a stop if one of its arguments is the value, or has it in a tuple, a list, a dict or a dataclass, at most
three deep. A return is a step into a file that the value has left before. Only the main thread is followed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import click

from benchmarks.common.options import backend_option, command, json_option
from benchmarks.common.runner import print_table

_DEPTH, _MOST_ITEMS = 3, 64
_LENGTHS = (67, 97, 193)
"""The last one is followed. It is no other number of the model."""


@dataclass(slots=True)
class Walk:
    """The stops of one value, in order.

    Attributes:
        root: the folder of the package.
        is_value: whether an object is the value that is followed.
        stops: the file and the name of each function.
    """

    root: str
    is_value: Callable[[Any], bool]
    stops: list[tuple[str, str]] = field(default_factory=list)

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        """Notes a function that is called with the value."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self.root):
            return
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        given = (frame.f_locals[name] for name in code.co_varnames[:count] if name in frame.f_locals)
        if any(self._has_value(value, _DEPTH) for value in given):
            self.stops.append((code.co_filename[len(self.root) + 1 :], code.co_qualname))

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
        """Returns the numbers of stops, of different functions and files, and of returns."""
        files = [name for name, _ in self.stops]
        steps = [later for earlier, later in zip(["", *files], files, strict=False) if earlier != later]
        known, functions = len(set(steps)), len(set(self.stops))
        return {"stops": len(self.stops), "functions": functions, "files": known, "returns": len(steps) - known}


def _list_parts(value: Any) -> Sequence[Any]:
    if isinstance(value, tuple | list):
        return value[:_MOST_ITEMS]
    if type(value) is dict:
        return list(value.values())[:_MOST_ITEMS]
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, each.name, None) for each in fields(value)]
    return ()


def follow_call(compiled: Callable[..., Any], args: Sequence[Any], root: str) -> Walk:
    """Follows the tensors of a region from its first call. The region's arguments are those of the program."""
    known = set(map(id, args))
    walk = Walk(root, lambda value: id(value) in known)

    def see_first(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_name == "dispatch" and frame.f_code.co_filename.startswith(root):
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


def _measure(backend: str, what: str, folder: str) -> Walk:
    import thunder
    import torch

    import fusioncache

    root = str(Path(fusioncache.__file__).parent)

    def compute(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * y) + torch.sin(x)

    def compile_anew() -> Callable[..., Any]:
        transform = fusioncache.FusionCache(backend=backend, cache=fusioncache.Cache(store=folder), jobs=0)
        executors = fusioncache.executors()
        if backend != "nvfuser":
            executors = [each for each in executors if each.name not in ("nvfuser", "fusioncache")]
            executors.append(thunder.get_executor("fusioncache"))
        return thunder.jit(compute, executors=executors, transforms=[transform])  # type: ignore[no-any-return]

    def make_args(length: int) -> tuple[torch.Tensor, torch.Tensor]:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.ones(5, length, device=device), torch.ones(5, length, device=device)

    compiled = compile_anew()
    if what == "call":
        return follow_call(compiled, make_args(_LENGTHS[0]), root)
    if what == "length":
        for length in _LENGTHS[:-1]:
            compiled(*make_args(length))
        walk = Walk(root, lambda value: type(value) is int and value == _LENGTHS[-1])
    else:
        walk = Walk(root, lambda value: type(value).__name__ in ("ProgramText", "TraceText"))
        if what == "loaded program":
            compiled(*make_args(_LENGTHS[0]))
            compiled = compile_anew()
    args = make_args(_LENGTHS[-1] if what == "length" else _LENGTHS[0])
    with walk.follow():
        compiled(*args)
    return walk


WALKS: Mapping[str, str] = {
    "call": "arguments of a region's first call",
    "stored program": "a program, where it is stored",
    "loaded program": "a program, where it is loaded",
    "length": "a third sequence length",
}


@command(__doc__)
@backend_option()
@click.option("--show", type=click.Choice(list(WALKS)), help="Print each stop of one walk.")
@json_option
def main(backend: str, show: str | None, json_file: Path | None) -> None:
    """Runs the benchmark."""
    found: dict[str, Walk] = {}
    for what in WALKS if show is None else [show]:
        with TemporaryDirectory(prefix="fusioncache-walks-") as folder:
            os.environ["FUSIONCACHE_DIR"] = folder
            found[what] = _measure(backend, what, folder)
    if show is not None:
        for file, name in found[show].stops:
            click.echo(f"{file:45} {name}")
    counts = {what: walk.count() for what, walk in found.items()}
    rows = [[WALKS[what], *map(str, each.values())] for what, each in counts.items()]
    print_table("walks", ("<value", "stops", "functions", "files", "returns"), rows, backend)
    if json_file is not None:
        json_file.write_text(json.dumps(counts, indent=1) + "\n")


if __name__ == "__main__":
    main()
