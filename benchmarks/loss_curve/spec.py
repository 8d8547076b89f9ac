"""What a loss curve is of, and how far curves are from each other. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ALONE, IN_PARTS = "alone", "alone in parts"
SHARINGS = ("ddp", "zero2", "zero3")
_SPREAD = 4.0
"""How much farther from the curve of one process a shared one may be than that process's own with batches in parts."""


@dataclass(frozen=True, slots=True)
class CurveSpec:
    """One training run. All runs see the same rows in the same order.

    Attributes:
        way: ``ALONE``; ``IN_PARTS``: one process, too, that adds up gradients of as many parts of the batch as there
            are ranks; or one of ``SHARINGS``.
        ranks: how many processes share the batch, or would.
        width: of the model, ``"narrow"`` or ``"real"``.
        layers: of the model.
        tokens: in a row.
        rows: of each rank.
        steps: of AdamW.
        learning_rate: of these.
        backend: ``"nvfuser"``, ``"inductor"`` or ``"eager"``.
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of weights and activations, by torch's name.
    """

    way: str
    ranks: int
    width: str
    layers: int
    tokens: int
    rows: int
    steps: int
    learning_rate: float
    backend: str
    device: str
    dtype: str

    @property
    def processes(self) -> int:
        """How many processes run it."""
        return self.ranks if self.way in SHARINGS else 1


def compare_curves(curves: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Returns how far each curve is at most from that of one process, and whether what rounds explains that.

    What rounding makes of itself in so many steps is what the curve of one process says that has batches in parts: in
    exact numbers it would be the same. A shared curve may be a few times as far.

    Args:
        curves: the losses of each way. Of ways that are missing nothing is said.
    """
    if ALONE not in curves or IN_PARTS not in curves:
        return []
    rounding = find_distance(curves[ALONE], curves[IN_PARTS])
    return [
        {"way": way, "distance": (found := find_distance(curves[ALONE], curve)), "equal": found <= _SPREAD * rounding}
        for way, curve in curves.items()
        if way != ALONE
    ]


def find_distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the greatest difference of two curves at any step."""
    return max(abs(first - second) for first, second in zip(one, other, strict=True))
