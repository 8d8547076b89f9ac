"""Measurements of ``benchmarks/budget``, as its parent process and its workers exchange them. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

COLD, SECOND = "cold", "second"
"""A process with empty caches, and a later process with the caches of the first."""

FIGURES: Mapping[str, str] = MappingProxyType(
    {
        "cold": "first step of a cold process",
        "second": "first step of a second process",
        "second_length": "first step at a second length",
        "third_length": "first step at a third length",
        "collector": "full collections in first steps",
        "later": "later step",
        "graphs": "later step with CUDA graphs",
    }
)
"""The figures that are compared, in seconds, by name."""

LENGTHS = (64, 96, 65)
"""Tokens per row, in the order of a cold process's first steps. All other steps have the first length."""

BATCH = 2
"""Rows of tokens."""

BASE_COMMIT = "ef4487f"
"""The default commit of the base."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """Specification of one process.

    Attributes:
        folder: that fusioncache is imported from.
        process: ``COLD`` or ``SECOND``.
        layers: of a narrow Llama.
        widths: of the Llama: embedding, number of heads, intermediate size of the MLP, vocabulary.
        lengths: tokens per row; a cold process uses one to three.
        batch: rows of tokens.
        steps: measured later steps.
        processes: number of second processes.
        backend: the compiler of regions: ``"nvfuser"``, ``"inductor"`` or ``"eager"``.
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of weights and activations, by torch's name.
        accelerators: that may be used; None for all. The commit of the base does not have this option.
        variables: environment variables of a process that is a fork of the worker.
    """

    folder: str
    process: str
    layers: int
    widths: tuple[int, int, int, int]
    lengths: tuple[int, ...]
    batch: int
    steps: int
    processes: int
    backend: str
    device: str
    dtype: str
    accelerators: tuple[str, ...] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
