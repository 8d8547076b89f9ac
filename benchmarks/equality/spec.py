"""What one point of the comparison of models is, as the parent process and its workers exchange it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import click

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


class Depths(click.ParamType):
    """This type reads numbers of layers, and ``real`` for as many as a configuration has, as in ``2,4,real``."""

    name = "depths"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int | None, ...]:
        """Reads the numbers. ``real`` becomes None, and comes last."""
        if not isinstance(value, str):
            return tuple(value)
        words = set(value.split(","))
        numbers = words - {"real"}
        if not all(word.isdecimal() and int(word) > 0 for word in numbers):
            self.fail(f"{value!r} is no list of positive numbers and real, such as 2,4,real", param, ctx)
        layers: list[int | None] = [*sorted({int(word) for word in numbers})]
        return (*layers, None) if "real" in words else tuple(layers)
