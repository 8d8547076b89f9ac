"""CUDA texts that say the same by other names: nvFuser numbers values and kernels as it comes to them."""

from __future__ import annotations

import hashlib
import re

_NUMBERED = re.compile(r"\b([A-Za-z_]+?)(\d+)\b")
_KERNEL = re.compile(r"\bnvfuser_\w+")


def digest_code(code: str) -> str:
    """Returns the first digits of a digest of the text, with names numbered by their first use."""
    names: dict[str, str] = {}
    counts: dict[str, int] = {}

    def rename(found: re.Match[str]) -> str:
        name, prefix = found[0], found[1]
        if name not in names:
            counts[prefix] = counts.get(prefix, -1) + 1
            names[name] = f"{prefix}{counts[prefix]}"
        return names[name]

    return hashlib.sha256(_NUMBERED.sub(rename, _KERNEL.sub("kernel", code)).encode()).hexdigest()[:16]
