"""What one point of the comparison of models is, as the parent process and its workers exchange it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.zoo.spec import ZooSpec

REFERENCES = ("plain", "lru")


@dataclass(frozen=True, slots=True)
class Spec(ZooSpec):
    """One model at one depth.

    Attributes:
        reference: what it is compared with: ``"plain"`` Thunder, or ``"lru"``: Thunder with nvFuser's own
            ``LruFusionCache``, which has the kernels of plain Thunder and compiles equal regions once.
        width: ``"narrow"`` or ``"real"``.
        rounds: how often the host time of a step is taken; 0 for never.
    """

    reference: str
    width: Literal["narrow", "real"]
    rounds: int
