"""Where the seconds of a run went, as parts of a bar."""

from __future__ import annotations

from dataclasses import dataclass

from fusioncache.record.observations import Phases

_ABOUT = {
    "tracing": "Thunder runs the model's Python and writes the first trace",
    "fusing": "Thunder transforms the traces up to the fused ones",
    "planning": "residual streams are planned and the traces rewritten for it",
    "canonicalizing": "regions become templates, keys and calls",
    "recording": "this record is written",
    "compiling": "the backend lowers and compiles, first execution of each program included",
    "loading": "programs come from the store",
    "first_execution": "each template is called for the first time for each layout",
}


@dataclass(frozen=True, slots=True)
class Slice:
    """One phase.

    Attributes:
        name: in words.
        about: what happens in it.
        seconds: that it took.
        start: share of all seconds that came before it.
        share: its share of all seconds.
        colour: its place among all phases there can be.
    """

    name: str
    about: str
    seconds: float
    start: float
    share: float
    colour: int


def slices(phases: Phases) -> tuple[Slice, ...]:
    """Returns the phases that were measured, in the order in which they come."""
    known = phases.to_dict()
    total = sum(known.values())
    found, before = [], 0.0
    for name, seconds in known.items():
        start, share = (before / total, seconds / total) if total else (0.0, 0.0)
        colour = list(_ABOUT).index(name)
        found.append(Slice(name.replace("_", " "), _ABOUT[name], seconds, start, share, colour))
        before += seconds
    return tuple(found)
