"""The seconds of a first step that are spent outside of a transform: in Dynamo, in Thunder's splitter, elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from fusioncache.record.ledger import Ledger


@dataclass(frozen=True, slots=True, eq=False)
class StepAccount:
    """Adds up the phases of a first step.

    Attributes:
        own: the ledger of one transform.
        all_of_cache: the ledger of its cache, which counts for all transforms with it.
    """

    own: Ledger
    all_of_cache: Ledger

    def note_seconds(self, phase: str, seconds: float) -> None:
        """Adds seconds to one of ``Phases``."""
        self.own.history.add_seconds(phase, seconds)

    def sum_seconds(self) -> float:
        """Returns the seconds of all ``Phases`` up to now, of all transforms with this cache."""
        return sum(self.all_of_cache.phases().to_dict().values())
