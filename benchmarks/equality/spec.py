"""What one point of the comparison of models is, as the parent process and its workers exchange it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

REFERENCES = ("plain", "lru")


@dataclass(frozen=True, slots=True)
class Spec:
    """One point: one model at one depth.

    Attributes:
        model: its name in the catalogue.
        layers: how many; None for as many as its configuration has.
        reference: what it is compared with: ``"plain"`` Thunder, or ``"lru"``: Thunder with nvFuser's own
            ``LruFusionCache``, which has the kernels of plain Thunder and compiles equal regions once.
        backend: the compiler: ``"nvfuser"``, ``"inductor"`` or ``"eager"``.
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of weights and activations, by torch's name.
        width: ``"narrow"`` or ``"real"``.
        rounds: how often the host time of a step is taken; 0 for never.
    """

    model: str
    layers: int | None
    reference: str
    backend: str
    device: str
    dtype: str
    width: Literal["narrow", "real"]
    rounds: int

    def __str__(self) -> str:
        return f"{self.model}, {'real depth' if self.layers is None else f'{self.layers} layers'}"
