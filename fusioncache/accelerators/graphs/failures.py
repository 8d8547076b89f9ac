"""What is not captured, and what went wrong: counted, and said once."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from fusioncache.accelerators.graphs.recorder import Tally
from fusioncache.ir.errors import Scope, is_declined
from fusioncache.process.warning import warn

logger = logging.getLogger("fusioncache")


@dataclass(frozen=True, slots=True)
class Failures:
    """Counts why programs run as they are.

    Attributes:
        tally: has the counts.
    """

    tally: Tally

    def refuse(self, reason: str) -> bool:
        """Counts a program that is not captured, or a call for which none is replayed; True for a new reason."""
        logger.debug("runs without a CUDA graph: %s", reason)
        return self.tally.count_not_captured(reason)

    def explain(self, error: Exception, what: str) -> str:
        """Returns the reason that an error in a capture is, and warns of it if it should not have happened."""
        if is_declined(error, Scope.CAPTURE):
            return error.reason
        logger.info("capturing %s failed", what, exc_info=error)
        reason = f"capture failed: {type(error).__name__}"
        warn(f"{what} runs without a CUDA graph, as it cannot be captured: {error}")
        return reason
