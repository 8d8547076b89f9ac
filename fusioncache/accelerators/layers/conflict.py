"""Why a trace is begun anew."""

from __future__ import annotations


class Conflict(BaseException):
    """Something came up that shows that a block should have been interpreted, after it was written out.

    No ``Exception``, which Thunder's interpreter would hand to the model's own code.
    """
