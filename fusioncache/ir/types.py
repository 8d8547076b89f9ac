"""The types of values: tensors and numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of the value with this number."""

    index: int


@dataclass(frozen=True, slots=True)
class TensorType:
    """The static type of a tensor.

    Attributes:
        dtype: Thunder's full dtype name, such as ``bfloat16``; weak dtypes end in ``_``.
        shape: one entry a dimension: its size, or the number value that holds a symbolic size.
        device: the device's type, such as ``cuda``; the index is not part of a type.
    """

    dtype: str
    shape: tuple[int | Ref, ...]
    device: str

    @property
    def bytes(self) -> int:
        """The size of a dense tensor in memory; a symbolic size counts as 1."""
        bits = re.search(r"\d+", self.dtype)
        item = max(1, int(bits.group()) // 8) if bits else 1
        return item * prod(size for size in self.shape if isinstance(size, int))

    def __str__(self) -> str:
        sizes = ", ".join(f"%{size.index}" if isinstance(size, Ref) else str(size) for size in self.shape)
        return f"{self.dtype}[{sizes}] {self.device}"


@dataclass(frozen=True, slots=True)
class NumberType:
    """A number known only at run time: ``int``, ``float``, ``bool`` or ``complex``."""

    python_type: str

    def __str__(self) -> str:
        return self.python_type


ValueType = TensorType | NumberType
