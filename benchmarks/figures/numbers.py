"""How figures are written."""

from __future__ import annotations


def seconds(value: float | None) -> str:
    """With three digits, or two below a second."""
    if value is None:
        return ""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
