"""The one exception for work that is declined, and its reasons.

A handler handles what is declined in its own scopes, and lets everything else pass. It begins with ``require``, or
calls ``is_declined`` if it handles other exceptions as well.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TypeGuard


class Scope(Enum):
    """The kind of work that is declined. There is one scope for each kind that handlers distinguish."""

    REGION = auto()  # to share a region: it stays as Thunder made it
    GENERAL = auto()  # to compile a region for any sizes
    STORING = auto()  # to store what was compiled for a region, now and later
    STORING_NOW = auto()  # to store what was compiled for a region this time
    TURN = auto()  # to wait for another process that compiles the same
    REQUEST = auto()  # to compile ahead what an entry asks for
    CAPTURE = auto()  # to capture a program in a CUDA graph, or to replay it
    PROGRAM = auto()  # to store a program: another process could not check whether it fits, or could not run it
    VALUE = auto()  # to describe a value: what depends on it cannot be reused
    AMOUNT = auto()  # to describe so many values, or so deep ones. Unlike a ``VALUE``, none is left out
    LENGTH = auto()  # to make a program at another length from stored programs
    STRUCTURE = auto()  # to exchange the items of a container, or to replay what was recorded for a block
    BLOCK = auto()  # to record a block, or to generate others from the record: they are interpreted
    PROLOGUE = auto()  # to rewrite a prologue
    ORDER = auto()  # to reorder calls


class Declined(Exception):
    """Work is declined for a counted reason. It is not an error, because there is a fallback.

    Attributes:
        reason: a short phrase, the same for everything that is declined for this reason, so that it can be counted.
        scope: the kind of work.
    """

    def __init__(self, reason: str, scope: Scope):
        super().__init__(reason)
        self.reason = reason
        self.scope = scope

    def require(self, *scopes: Scope) -> None:
        """Raises this exception again unless its scope is one of these."""
        if self.scope not in scopes:
            raise self


def is_declined(error: BaseException, *scopes: Scope) -> TypeGuard[Declined]:
    """True if an exception is a ``Declined`` with one of these scopes."""
    return isinstance(error, Declined) and error.scope in scopes
