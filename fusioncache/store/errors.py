"""What can go wrong in a store."""

from __future__ import annotations

import errno


class StoreError(Exception):
    """A store cannot be used, here or on another machine; the message says why, and holds no credentials."""


class Refusal(Exception):
    """One thing that the store does not take or does not give out.

    Attributes:
        reason: a short phrase, the same for everything refused for this reason, so that refusals can be counted by it.
    """

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def name_cause(error: Exception) -> str:
    """Returns what to count an error as: the name of its number, such as ``ENOSPC``, else of its type."""
    number = error.errno if isinstance(error, OSError) else None
    return errno.errorcode.get(number or 0, type(error).__name__)
