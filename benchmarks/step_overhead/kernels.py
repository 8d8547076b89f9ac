"""What a GPU does in a step, by who made the kernels."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from benchmarks.common.kernels import Kernel

KINDS = {
    "nvFuser": r"nvfuser",
    "Triton": r"^triton_|^_?add$",
    "attention": r"fmha|flash|attention|cudnn.*sdpa",
    "products": r"gemm|nvjet|cutlass|cublas|splitK|xmma|gemv",
    "copies and fills": r"^mem(cpy|set)|FillFunctor",
}
"""The kinds of kernels by what is in their names; the first that fits. Whatever is left is ``OTHERS``."""

OTHERS = "others of torch's"

_LONGEST, _NAME = 20, 120
"""How many kernels are listed by name, and how many characters of each name: C++ makes long ones."""

_PATTERNS = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in KINDS.items()}


def sort_kernel(name: str) -> str:
    """Returns the kind of a kernel of this name."""
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.search(name)), OTHERS)


def sum_kernels(kernels: Iterable[Kernel], steps: int) -> dict[str, dict[str, float]]:
    """Returns milliseconds and how many kernels there were in one of so many steps, by kind."""
    taken: defaultdict[str, float] = defaultdict(float)
    counts = Counter[str]()
    for kernel in kernels:
        kind = sort_kernel(kernel.name)
        taken[kind] += kernel.end - kernel.start
        counts[kind] += 1
    return {
        kind: {"milliseconds": round(taken[kind] / 1e3 / steps, 4), "kernels": counts[kind] / steps}
        for kind in (*KINDS, OTHERS)
        if counts[kind]
    }


def list_longest(kernels: Iterable[Kernel], steps: int) -> list[dict[str, str | float]]:
    """Returns milliseconds and how many there were in one of so many steps of the kernels that take most, by name."""
    taken: defaultdict[str, float] = defaultdict(float)
    counts = Counter[str]()
    for kernel in kernels:
        taken[kernel.name] += kernel.end - kernel.start
        counts[kernel.name] += 1
    longest = sorted(taken, key=lambda name: (-taken[name], name))[:_LONGEST]
    return [
        {
            "name": name[:_NAME],
            "milliseconds": round(taken[name] / 1e3 / steps, 4),
            "kernels": counts[name] / steps,
        }
        for name in longest
    ]
