"""What one point of the comparison at many sizes is, as the parent process and its workers exchange it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.zoo.spec import ZooSpec


@dataclass(frozen=True, slots=True)
class Spec(ZooSpec):
    """One model at one depth.

    Attributes:
        batches: rows of the inputs; each has all lengths before the next one comes.
        lengths: tokens in a row, in order.
    """

    batches: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Spec:
        """Returns a spec of its fields as JSON has them."""
        return cls(**{**options, **{name: tuple(options[name]) for name in ("batches", "lengths")}})

    def settings(self) -> Iterator[tuple[int, int]]:
        """Returns each batch with each length, in the order in which the model gets them."""
        return ((batch, length) for batch in self.batches for length in self.lengths)


def name_kind(batch: int, length: int) -> str:
    """Returns which sizes are 1: these are never general, so that such settings share nothing with others."""
    return ", ".join([*["one row"] * (batch == 1), *["one token"] * (length == 1)]) or "many"
