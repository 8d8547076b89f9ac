"""Why a block is interpreted as Thunder does it, and why a trace is begun anew."""

from __future__ import annotations


class Refused(Exception):
    """A block that is not understood well enough to be written out, or to write others out by it. It is interpreted."""


class Conflict(BaseException):
    """Something came up that shows that a block should have been interpreted, after it was written out.

    No ``Exception``, which Thunder's interpreter would hand to the model's own code.
    """
