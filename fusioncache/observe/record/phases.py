"""The phases of a run for people: title, owner and description of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class PhaseAbout:
    """One phase, which has a field in ``Phases``.

    Attributes:
        title: its name in words.
        owner: whose code runs in it.
        about: what happens in it.
    """

    title: str
    owner: str
    about: str


_DYNAMO, _THUNDER, _COMPILERS, _OWN, _REST = "Dynamo", "Thunder", "compilers", "fusioncache", "the rest"

PHASES: Mapping[str, PhaseAbout] = MappingProxyType(
    {
        "dynamo": PhaseAbout("Dynamo", _DYNAMO, "Dynamo makes graphs and guards of the model's Python"),
        "splitting": PhaseAbout("splitting", _THUNDER, "Thunder cuts these graphs where it lacks an operation"),
        "other_compilers": PhaseAbout(
            "other compilers", _COMPILERS, "TorchInductor compiles what is not given to Thunder"
        ),
        "loading_programs": PhaseAbout(
            "loading programs", _OWN, "programs are looked up, compared and loaded, in place of tracing and fusing"
        ),
        "tracing": PhaseAbout("tracing", _THUNDER, "Thunder runs the model's Python and writes the first trace"),
        "fusing": PhaseAbout("fusing", _THUNDER, "Thunder transforms the traces up to the fused ones"),
        "planning": PhaseAbout("planning", _OWN, "residual streams are planned, and the traces rewritten for it"),
        "canonicalizing": PhaseAbout("canonicalizing", _OWN, "regions become templates, keys and calls"),
        "keeping_programs": PhaseAbout(
            "storing programs", _OWN, "what Thunder reads is recorded, and its programs are written into the store"
        ),
        "recording": PhaseAbout("recording", _OWN, "this record is written"),
        "starting": PhaseAbout("starting", _COMPILERS, "compilers are started, once in a process"),
        "compiling": PhaseAbout(
            "compiling", _COMPILERS, "the backend lowers and compiles, first execution of each executable included"
        ),
        "loading": PhaseAbout("loading", _OWN, "executables come from the store"),
        "first_execution": PhaseAbout(
            "first execution", _REST, "each template is called for the first time for each layout"
        ),
        "other": PhaseAbout(
            "rest of the call", _REST, "imports, the model's own operations, and all else while Dynamo compiles"
        ),
    }
)
"""All phases, in the order in which they come."""


def add_up_owners(seconds: Mapping[str, float]) -> Mapping[str, float]:
    """Returns the seconds of each owner of phases that were measured, in the order in which owners come first."""
    found: dict[str, float] = {}
    for name, about in PHASES.items():
        if name in seconds:
            found[about.owner] = found.get(about.owner, 0.0) + seconds[name]
    return found
