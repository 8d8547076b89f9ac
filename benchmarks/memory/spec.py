"""What one point of the benchmark of memory is, as the parent process and its workers exchange it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MODELS = {"olmo-2": "OLMo-2-like", "gemma-2": "Gemma-2-like"}
"""Models of the zoo: in both a block adds normalized terms to the residual stream."""
REFERENCE = "reference"
AGAIN = "again"
"""The reference once more: what does not have the same bits even then, no plan can be measured by."""
PLANS = (REFERENCE, AGAIN, "auto", "segmented", "carry", "inline", "fold")
WIDTHS = ("narrow", "real")


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """One process of the benchmark.

    Attributes:
        model: one of ``MODELS``.
        plan: ``"reference"`` or ``"again"`` for no recompute, else ``FusionCache``'s ``residual``.
        budget: ``FusionCache``'s ``memory_budget`` in MiB; None for none.
        layers: of the model; None for as many as its configuration has.
        sequence: tokens in a row of the input.
        batch: its rows.
        width: of the model, one of ``WIDTHS``.
        head: whether there are an embedding of the whole vocabulary, a head, and a cross entropy.
        backend: the compiler: ``"nvfuser"``, ``"inductor"`` or ``"eager"``.
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of weights and activations, by torch's name.
        steps: timed ones after the first, and as many before these that are not.
        seconds: after which the process ends, whatever it is doing; 0 for never.
    """

    model: str
    plan: str
    budget: int | None
    layers: int | None
    sequence: int
    batch: int
    width: str
    head: bool
    backend: str
    device: str
    dtype: str
    steps: int
    seconds: int

    @property
    def name(self) -> str:
        """The name of the point among those of its model."""
        return self.plan if self.budget is None else f"{self.plan}, {self.budget} MiB"

    def options(self) -> dict[str, Any]:
        """Returns the options of ``FusionCache`` for this plan."""
        if self.plan in (REFERENCE, AGAIN):
            return {}
        budget = None if self.budget is None else self.budget * 2**20
        return {"recompute": "residual", "residual": self.plan, "memory_budget": budget}

    def __str__(self) -> str:
        return f"{self.model}, {self.name}"
