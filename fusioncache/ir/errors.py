"""The one exception for what is not done, and why.

A handler takes what is declined of its own scope, and lets all else pass: it begins with ``require``, or, where it
handles any other exception as well, asks ``is_declined``.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TypeGuard


class Scope(Enum):
    """What is declined. Scopes are as many as handlers tell apart."""

    REGION = auto()  # to share a region: it stays as Thunder made it
    GENERAL = auto()  # to compile a region for any sizes
    STORING = auto()  # to store what was compiled for a region, now and later
    STORING_NOW = auto()  # to store what was compiled for a region this time
    TURN = auto()  # to wait for another process that compiles the same
    REQUEST = auto()  # to compile ahead what an entry asks for
    CAPTURE = auto()  # to capture a program in a CUDA graph, or to replay it
    PROGRAM = auto()  # to keep a program: another process could not tell whether it fits, or could not run it
    VALUE = auto()  # to describe a value: what depends on it cannot be reused
    AMOUNT = auto()  # to describe so many values, or so deep ones. Unlike another value, none of these is left out
    LENGTH = auto()  # to make a program at another length out of those that are known
    STRUCTURE = auto()  # to exchange the items of a container, or to repeat what was noted of a block
    BLOCK = auto()  # to write a block out, or to write others out by it: it is interpreted
    PROLOGUE = auto()  # to write a prologue anew
    ORDER = auto()  # to order calls otherwise than they are given


class Declined(Exception):
    """Something is not done, for a reason. It is no error, as there is another way.

    Attributes:
        reason: a short phrase, the same for everything that is declined for this reason, so that it can be counted.
        scope: what is declined.
    """

    def __init__(self, reason: str, scope: Scope):
        super().__init__(reason)
        self.reason = reason
        self.scope = scope

    def require(self, *scopes: Scope) -> None:
        """Raises this again unless its scope is one of these."""
        if self.scope not in scopes:
            raise self


def is_declined(error: BaseException, *scopes: Scope) -> TypeGuard[Declined]:
    """True if an exception declines something of one of these scopes."""
    return isinstance(error, Declined) and error.scope in scopes
