"""A program at one length, of which programs at other lengths are made."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusioncache.accelerators.programs.text import ProgramText
from fusioncache.accelerators.sizes.values import ArgumentSizes
from fusioncache.ir.errors import Declined, Scope
from fusioncache.observe.record.kept_regions import decode_regions
from fusioncache.observe.record.observations import PlacementRecord


@dataclass(frozen=True, slots=True)
class KnownProgram:
    """A program that Thunder derived, or would have.

    Attributes:
        text: its traces.
        sizes: of its arguments.
        regions: what a run has on record of its regions, if that is known.
    """

    text: ProgramText
    sizes: ArgumentSizes
    regions: bytes | None

    def list_placements(self) -> tuple[PlacementRecord, ...]:
        """Returns where the collectives of its traces are, without the names of calls, which templates have of sizes.

        Raises:
            Declined: if something was chosen that may depend on sizes, such as a plan of a residual stream.
        """
        kept = None if self.regions is None else decode_regions(self.regions, "", 0)
        if kept is None or kept.choices:
            raise Declined("the plan for its residual streams may differ", Scope.LENGTH)
        return tuple(replace(placement, calls=()) for placement in kept.placements)
