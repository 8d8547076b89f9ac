"""Single values as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby

_SHORTEST_RANGE = 3


def seconds_text(seconds: float) -> str:
    """Seconds down to the millisecond, without a unit."""
    return f"{seconds:.3f}"


def time_text(seconds: float) -> str:
    """A moment in local time with its offset, from seconds since the epoch."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


def one_line(text: str) -> str:
    """The text with its line breaks and terminal controls escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def arities_text(arities: Sequence[tuple[int, ...]]) -> str:
    """The arities of each chain as ranges, such as ``1-31`` or ``1-31 / 2, 4``; ``-`` if there is no chain."""
    return " / ".join(_ranges(set(chain)) for chain in zip(*arities, strict=False)) or "-"


def _ranges(numbers: Iterable[int]) -> str:
    parts: list[str] = []
    # Neighbours differ from their rank by the same amount.
    for _, ranked in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in ranked]
        if len(run) < _SHORTEST_RANGE:
            parts += map(str, run)
        else:
            parts.append(f"{run[0]}-{run[-1]}")
    return ", ".join(parts)
