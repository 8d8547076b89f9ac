"""The contract of a recorder of programs, such as CUDA graphs, and the reasons why a program is not captured."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fusioncache.ir.errors import Scope, is_declined
from fusioncache.observe.record.ledger import Ledger
from fusioncache.process.warning import warn


@dataclass(frozen=True, slots=True)
class GraphRecording:
    """What was captured.

    Attributes:
        replay: does it again, with what lies in the captured memory then.
        results: what the function returned, of which nothing was computed yet. Tensors that the capture allocated own
            their memory in the pool: it goes to later captures when they are gone. To forget them, clear the list.
    """

    replay: Callable[[], None]
    results: list[Any]


FORWARD = 0
"""The pool of forward programs. Others are for backward programs."""

Record = Callable[[list[Any]], Sequence[Any]]
"""What is captured: takes its arguments out of a list, which it empties, and returns a flat sequence of results."""


class GraphRecorder(Protocol):
    """Captures on one device, with memory in pools that have none in common."""

    @property
    def device(self) -> Any:
        """A ``torch.device``."""

    def explain_unready(self) -> str | None:
        """Tells why nothing can be captured or replayed at this moment; None if it can. Asked in each call."""

    def read_random_state(self) -> object:
        """Returns a value that stays equal until random numbers are drawn."""

    def record(self, function: Record, arguments: list[Any], pool: int = FORWARD) -> GraphRecording:
        """Captures a call of a function, without doing what it does.

        Args:
            function: what is captured.
            arguments: at the addresses at which each replay finds them.
            pool: the number of that which has the memory for it.

        Raises:
            Exception: whatever goes wrong. Everything is as it was before.
        """

    def finish(self) -> None:
        """Waits until what was launched is done, so that memory can be used for something else.

        Within a foreign capture nothing was launched, and it waits for nothing.
        """


logger = logging.getLogger("fusioncache")


@dataclass(frozen=True, slots=True)
class Failures:
    """Counts why programs run as they are.

    Attributes:
        ledger: has the counts.
    """

    ledger: Ledger

    def refuse(self, reason: str) -> bool:
        """Counts a program that is not captured, or a call for which none is replayed; True for a new reason."""
        logger.debug("runs without a CUDA graph: %s", reason)
        return self.ledger.count("not_captured", of=reason)

    def explain(self, error: Exception, what: str) -> str:
        """Returns the reason that an error in a capture is, and warns of it if it should not have happened."""
        if is_declined(error, Scope.CAPTURE):
            return error.reason
        logger.info("capturing %s failed", what, exc_info=error)
        reason = f"capture failed: {type(error).__name__}"
        warn(f"{what} runs without a CUDA graph, as it cannot be captured: {error}")
        return reason
