"""Formats single values for people."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby

_SHORTEST_RANGE = 3
_NO_BREAK = "\N{NO-BREAK SPACE}"
_WORD_WITH_SPACES = re.compile(r"'fusioncache [^']*'|\d (?:ms|s|B|kB|MB|GB|TB)\b")
"""Words with spaces: commands, which stay whole so that they can be copied, and numbers with their units."""


def format_seconds(seconds: float) -> str:
    """Formats seconds down to the millisecond, without a unit."""
    return f"{seconds:.3f}"


def format_number(value: float | str) -> str:
    """Returns a number or a text as text. A float is a number of seconds."""
    return format_seconds(value) if isinstance(value, float) else str(value)


def format_duration(seconds: float) -> str:
    """Formats seconds with three digits, in the unit that suits them."""
    if seconds >= 99.95:
        return f"{seconds:,.0f} s"
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"


def describe_savings(seconds: float) -> str:
    """Returns a phrase for saved or lost seconds, such as ``about 6.1 s saved`` or ``about 400 ms lost``."""
    return f"about {format_duration(abs(seconds))} {'lost' if seconds < 0 else 'saved'}"


def format_time(seconds: float) -> str:
    """Formats a time, in seconds since the epoch, as local time with its offset."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


def format_bytes(size: float) -> str:
    """Formats a number of bytes in the unit that suits it, such as ``1.2 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def format_age(seconds: float) -> str:
    """Formats an age in its largest unit, such as ``3 d``. A negative age, of something in the future, is ``0 s``."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def format_count(number: int, one: str, many: str) -> str:
    """Formats a number of things, such as ``1 entry`` or ``2 entries``."""
    return f"{number} {one if number == 1 else many}"


def escape_controls(text: str) -> str:
    """Escapes the line breaks and the terminal controls in a text, so that it is one line."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def fold_text(text: str, width: int, indent: int = 0, *, keep_paths: bool = False) -> list[str]:
    """Breaks a text into lines of at most a width: at spaces, and within words that are longer than a line.

    Commands in quotes and numbers with their units are words.

    Args:
        text: one line.
        width: the most characters of a line.
        indent: the indent of all lines but the first.
        keep_paths: whether paths stay whole, so that they can be copied.
    """
    whole = _WORD_WITH_SPACES.sub(lambda found: found[0].replace(" ", _NO_BREAK), text)
    lines = []
    for line in _wrap(whole, width, indent, break_words=False):
        breaks = len(line) > width and not (keep_paths and "/" in line)
        lines += _wrap(line, width, indent, break_words=True) if breaks else [line]
    return [line.replace(_NO_BREAK, " ") for line in lines] or [""]


def _wrap(text: str, width: int, indent: int, *, break_words: bool) -> list[str]:
    start = len(text) - len(text.lstrip(" "))
    return textwrap.wrap(
        text[start:],
        max(width, start + 1, indent + 1),
        initial_indent=" " * start,
        subsequent_indent=" " * indent,
        break_long_words=break_words,
        break_on_hyphens=False,
        replace_whitespace=False,
        expand_tabs=False,
    )


def format_arities(arities: Sequence[tuple[int, ...]]) -> str:
    """Formats the arities of each chain as ranges, such as ``1-31`` or ``1-31 / 2, 4``; ``-`` if there is no chain."""
    return " / ".join(format_ranges(set(chain)) for chain in zip(*arities, strict=False)) or "-"


def format_ranges(numbers: Iterable[int]) -> str:
    """Formats distinct numbers as ranges, such as ``1-31, 40``."""
    parts: list[str] = []
    # Consecutive numbers differ from their rank by the same amount.
    for _, ranked in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in ranked]
        if len(run) < _SHORTEST_RANGE:
            parts += map(str, run)
        else:
            parts.append(f"{run[0]}-{run[-1]}")
    return ", ".join(parts)
