"""How large the numbers in a recipe may be, and refusing what is not."""

from __future__ import annotations

from typing import Any

MOST_BYTES = 2**42
MOST_ITEMS = 4096
MOST_DIMENSIONS = 64
MOST_PARAMETER_BYTES = 32764
MOST_SHARED = 2**18
GRID, BLOCK, THREADS = (2**31 - 1, 65535, 65535), (1024, 1024, 64), 1024


def whole(value: Any, least: int, most: int, what: str) -> None:
    """Refuses what is no whole number in this range."""
    require(type(value) is int and least <= value <= most, what)


def require(holds: bool, what: str) -> None:
    """Refuses a recipe.

    Raises:
        ValueError: says what it is wrong about.
    """
    if not holds:
        raise ValueError(f"a recipe that is wrong about {what}")
