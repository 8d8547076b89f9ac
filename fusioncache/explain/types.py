"""In what two types differ."""

from __future__ import annotations

from fusioncache.explain.change import NONE
from fusioncache.ir import Ref, TensorType, ValueType

Aspect = tuple[str, str, str]
"""What differs, and both values."""


def aspects(a: ValueType | None, b: ValueType | None) -> list[Aspect]:
    """What differs between two types of values: ``dtype``, ``rank``, ``size of dimension 0``, and so on.

    Symbolic sizes are one like the other.
    """
    if not (isinstance(a, TensorType) and isinstance(b, TensorType)):
        return [("type", _kind(a), _kind(b))] if a != b else []
    found = [(name, x, y) for name, x, y in (("dtype", a.dtype, b.dtype), ("device", a.device, b.device)) if x != y]
    return found + _shapes(_sizes(a), _sizes(b))


def _shapes(a: list[str], b: list[str]) -> list[Aspect]:
    if len(a) != len(b):
        return [("rank", str(len(a)), str(len(b)))]
    other = [place for place, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    if len(other) == 1:
        place = other[0]
        return [(f"size of dimension {place}", a[place], b[place])]
    return [("shape", _tuple(a), _tuple(b))] if other else []


def _sizes(type_: TensorType) -> list[str]:
    return ["symbolic" if isinstance(size, Ref) else str(size) for size in type_.shape]


def _tuple(sizes: list[str]) -> str:
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _kind(type_: ValueType | None) -> str:
    if type_ is None:
        return NONE
    return "a tensor" if isinstance(type_, TensorType) else str(type_)
