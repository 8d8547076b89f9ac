"""What the processes of the comparison of programs have to do. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

THUNDER, FIRST, SECOND = "thunder", "first", "second"
"""The processes: Thunder without fusioncache, one that keeps the programs that it derives, one that loads them."""

HASH_SEEDS: Mapping[str, str] = MappingProxyType({THUNDER: "0", FIRST: "1", SECOND: "2"})
"""``PYTHONHASHSEED`` of each: sets of strings have another order in each process."""

STEPS = 3


@dataclass(frozen=True, slots=True)
class Spec:
    """One model at one depth.

    Attributes:
        model: its name in the catalogue.
        layers: how many; None for as many as its configuration has.
        backend: the compiler: ``"nvfuser"``, ``"inductor"`` or ``"eager"``.
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
