"""What a point of a comparison over the zoo is, as the parent process and its workers exchange it. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ZooSpec:
    """One model at one depth.

    Attributes:
        model: its name in the catalogue.
        layers: how many; None for as many as its configuration has.
        backend: the compiler that regions are made for: ``"nvfuser"``, ``"inductor"`` or ``"eager"``.
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of weights and activations, by torch's name.
    """

    model: str
    layers: int | None
    backend: str
    device: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.model}, {'real depth' if self.layers is None else f'{self.layers} layers'}"
