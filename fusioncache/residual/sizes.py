"""How large values are."""

from __future__ import annotations

import re
from math import prod

from fusioncache.ir import TensorType


def size_of(type_: TensorType) -> int:
    """The bytes of a dense tensor of static shape; a symbolic size counts as 1."""
    return prod(size for size in type_.shape if isinstance(size, int)) * _width(type_.dtype)


def _width(dtype: str) -> int:
    """The bytes of an element, from Thunder's name of its dtype, such as ``bfloat16`` or ``complex64_``."""
    bits = re.search(r"\d+", dtype)
    return max(1, int(bits.group()) // 8) if bits else 1
