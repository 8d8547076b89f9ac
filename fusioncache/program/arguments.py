"""The ingredient ``arguments``: what a program is called with.

Tensors are described by all that Thunder or a model can ask of them but their numbers: type, dtype, shape, strides,
device, what autograd does with them, and which of them, and of the model's parameters, share memory. All else is
described by value, as Thunder makes a program for each number and each text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusioncache.program.describe import Describer


def read_arguments(describer: Describer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields each argument by its place: how many there are, then one after the other, with what each holds.

    Args:
        describer: has described the model, so that it knows its parameters.
        args: by position.
        kwargs: by name, in their order: a function may see it.

    Raises:
        NoValue: if one has no value that could be compared, as an open file.
    """
    yield "args", f"{len(args)} {' '.join(map(_write_name, kwargs))}".rstrip()
    for position, value in enumerate(args):
        yield from describer.walk(f"args.{position}", value)
    for name, value in kwargs.items():
        yield from describer.walk(f"kwargs.{_write_name(name)}", value)


def _write_name(name: str) -> str:
    return "".join(char if char.isalnum() or char == "_" else f"%{ord(char):x}%" for char in name)
