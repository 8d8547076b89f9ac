"""The processes and the models that ``benchmarks/saved_seconds`` compares. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STARTS, THUNDER, SHORTCUTS, OURS = "starts", "thunder", "shortcuts", "fusioncache"
"""What a process does: it only starts the compiler, Thunder alone, with our shortcuts in tracing, all of ours."""

MODELS = ("gelu-stack", "llama-2", "pythia", "nothing-repeats")
"""``gelu-stack`` is four linear layers and GELUs; in ``nothing-repeats`` no two regions are equal. The others are those
of the zoo, narrow."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A first step in a process of its own.

    Attributes:
        way: what the process does.
        model: one of ``MODELS``.
        layers: of a model of the zoo.
        backend: compiles regions.
        device: ``"cpu"`` or ``"cuda"``.
        clock: ``"cpu"`` for the CPU seconds of the process and of those that it starts, ``"wall"`` for seconds.
        processor: what another process found that the processor can do; empty for one that is to find out.
    """

    way: str
    model: str
    layers: int
    backend: str
    device: str
    clock: str
    processor: str = ""

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> ProcessSpec:
        """Reads what ``dataclasses.asdict`` wrote."""
        return cls(**options)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two processes whose difference is what fusioncache saved.

    Attributes:
        name: for people.
        alone: the role of the process without fusioncache.
        ours: the role of the one with it.
    """

    name: str
    alone: str
    ours: str


COMPARISONS = (
    Comparison("first process", "alone", "first"),
    Comparison("second process", "alone", "second"),
    Comparison("second process, TorchInductor's caches full", "alone again", "second beside"),
)


def agrees(reported: float, real: float) -> bool:
    """True if reported seconds are within 20% of the real ones, or within half a second."""
    return abs(reported - real) <= max(0.2 * abs(real), 0.5)
