"""Single values as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby

_SHORTEST_RANGE = 3


def seconds_text(seconds: float) -> str:
    """Seconds down to the millisecond, without a unit."""
    return f"{seconds:.3f}"


def duration_text(seconds: float) -> str:
    """Seconds with three digits, in the unit that suits them."""
    if seconds >= 99.95:
        return f"{seconds:,.0f} s"
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"


def time_text(seconds: float) -> str:
    """A moment in local time with its offset, from seconds since the epoch."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


def bytes_text(size: float) -> str:
    """A number of bytes in the unit that suits it, such as ``1.2 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def age_text(seconds: float) -> str:
    """A length of time in its largest unit, such as ``3 d``. What lies in the future is no time ago."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def count_text(number: int, one: str, many: str) -> str:
    """A number of things, such as ``1 entry`` or ``2 entries``."""
    return f"{number} {one if number == 1 else many}"


def one_line(text: str) -> str:
    """The text with its line breaks and terminal controls escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def arities_text(arities: Sequence[tuple[int, ...]]) -> str:
    """The arities of each chain as ranges, such as ``1-31`` or ``1-31 / 2, 4``; ``-`` if there is no chain."""
    return " / ".join(ranges_text(set(chain)) for chain in zip(*arities, strict=False)) or "-"


def ranges_text(numbers: Iterable[int]) -> str:
    """Distinct numbers as ranges, such as ``1-31, 40``."""
    parts: list[str] = []
    # Neighbours differ from their rank by the same amount.
    for _, ranked in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in ranked]
        if len(run) < _SHORTEST_RANGE:
            parts += map(str, run)
        else:
            parts.append(f"{run[0]}-{run[-1]}")
    return ", ".join(parts)
