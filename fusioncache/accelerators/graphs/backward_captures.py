"""The backward programs that were captured after a forward program: one, and more where gradients are held on to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusioncache.accelerators.graphs.calls import Kind
from fusioncache.accelerators.graphs.loans import LENT, Loans
from fusioncache.ir.errors import Declined, Scope

if TYPE_CHECKING:
    from fusioncache.accelerators.graphs.captured_backward import CapturedBackward


class BackwardCaptures:
    """The backward programs that were captured after one forward program: for a kind of gradients one in each pool.

    Args:
        loans: of the device.
    """

    def __init__(self, loans: Loans):
        self._loans = loans
        self._captured: list[CapturedBackward] = []

    def find(self, kind: Kind) -> CapturedBackward | None:
        """Returns what may be replayed now for gradients of a kind; None if nothing may."""
        return next((each for each in self._captured if each.kind == kind and each.is_free()), None)

    def find_pool(self, kind: Kind) -> int:
        """Returns the pool for another capture for gradients of a kind.

        Raises:
            Declined: if no pool is free.
        """
        pool = self._loans.find_pool([each.pool for each in self._captured if each.kind == kind])
        if pool is None:
            raise Declined(LENT, Scope.CAPTURE)
        return pool

    def add(self, captured: CapturedBackward) -> None:
        """Adds what was captured."""
        self._captured.append(captured)
