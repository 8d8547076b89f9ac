"""What one point of ``benchmarks/first_step`` is, as the parent process and its workers exchange it. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.common.spec import ModelSpec, count_layers

TRACINGS = ("own", "fast", "before", "torch.compile")
WIDTHS = ("narrow", "real")
STARTS = ("hidden", "ready")

PASSES = ("interpret", "prologue", "grad", "claim", "fuse", "rematerialize", "cleanup", "codegen", "fusioncache")
"""The phases of tracing."""
PHASES = (*PASSES, "compile", "rest", "total")
"""They add up to the total."""
PARTS = ("trace", "after_trace")
"""The total again, cut at the moment when all is traced."""


@dataclass(frozen=True, slots=True)
class PointSpec:
    """A first step in a process of its own.

    Attributes:
        model: the model and the compiler. Its layers are those of the point.
        width: of a Llama, one of ``WIDTHS``: ``"real"`` is the configuration of Llama-2-7b untouched.
        tracing: one of ``TRACINGS``.
        jobs: how many other processes compile; None for as many as fusioncache chooses by itself.
        start: one of ``STARTS``: whether these processes start while Thunder traces, or are there before.
        store: whether fusioncache keeps what it compiles. Other processes compile into its store only.
    """

    model: ModelSpec
    width: str
    tracing: str
    jobs: int | None = None
    start: str = "hidden"
    store: bool = False

    def __str__(self) -> str:
        words = [count_layers(self.model.layers), self.tracing]
        if self.jobs is not None:
            words.append(f"{self.jobs} jobs, {self.start}")
        return ", ".join(words)

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> PointSpec:
        """Reads what ``dataclasses.asdict`` wrote."""
        return cls(**{**options, "model": ModelSpec(**options["model"])})
